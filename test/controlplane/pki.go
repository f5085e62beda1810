/*
Copyright The svm-controller-manager Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package controlplane

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
)

const (
	frontProxyName        = "front-proxy"
	serviceAccountPublic  = "service-account.pub"
	serviceAccountPrivate = "service-account.key"
)

func (cp *ControlPlane) pkiPath(name string) string { return filepath.Join(cp.dir, "pki", name) }

// writePKI creates the certificate authority and everything that all servers share.
func (cp *ControlPlane) writePKI() error {
	dir := cp.pkiPath("")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making a folder for certificates: %w", err)
	}
	var err error
	if cp.authority, err = newAuthority(); err != nil {
		return err
	}
	caKey, err := encodeKey(cp.authority.key)
	if err != nil {
		return err
	}
	if err := (keyPair{certificate: cp.authority.pem, key: caKey}).write(dir, "ca"); err != nil {
		return err
	}
	proxy, err := cp.authority.client(frontProxyUser)
	if err != nil {
		return err
	}
	if err := proxy.write(dir, frontProxyName); err != nil {
		return err
	}
	return cp.writeServiceAccountKeys()
}

func (cp *ControlPlane) writeServiceAccountKeys() error {
	key, err := newKey()
	if err != nil {
		return err
	}
	private, err := encodeKey(key)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encoding the service accounts' key: %w", err)
	}
	for name, content := range map[string][]byte{
		serviceAccountPrivate: private,
		serviceAccountPublic:  encode("PUBLIC KEY", der),
	} {
		if err := os.WriteFile(cp.pkiPath(name), content, 0o600); err != nil {
			return fmt.Errorf("writing the service accounts' key: %w", err)
		}
	}
	return nil
}
