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

package options

import (
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"strings"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/path"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"sigs.k8s.io/svm-controller-manager/pkg/features"
)

// flagOf has the flag behind each field that an error of a library names.
var flagOf = map[string]string{
	"flushFrequency":                      "--log-flush-frequency",
	"format":                              "--logging-format",
	"options.json.infoBufferSize":         "--log-json-info-buffer-size",
	"options.json.splitStream":            "--log-json-split-stream",
	"options.text.infoBufferSize":         "--log-text-info-buffer-size",
	"options.text.splitStream":            "--log-text-split-stream",
	"verbosity":                           "--v",
	"vmodule":                             "--vmodule",
	"metrics":                             "--allow-metric-labels and --allow-metric-labels-manifest",
	"metrics.allowListMapping":            "--allow-metric-labels",
	"metrics.allowListMappingManifest":    "--allow-metric-labels-manifest",
	"metrics.disabledMetrics":             "--disabled-metrics",
	"metrics.showHiddenMetricsForVersion": "--show-hidden-metrics-for-version",
}

// nameFlags puts the names of flags in the place of the names of fields.
func nameFlags(errs []error) []error {
	for _, err := range errs {
		if wrong, is := errors.AsType[*field.Error](err); is {
			name, _, _ := strings.Cut(wrong.Field, "[")
			if flag, known := flagOf[name]; known {
				wrong.Field = flag
			}
		}
	}
	return errs
}

// ApplyLogs checks the flags of logging, and applies them.
func (o *Options) ApplyLogs() error {
	err := logsapi.ValidateAndApply(o.Logs, features.DefaultFeatureGate)
	if all, is := errors.AsType[utilerrors.Aggregate](err); is {
		return utilerrors.NewAggregate(nameFlags(all.Errors()))
	}
	return err
}

// validatePort checks in the place of the library, which says of a wrong port that 0 is wrong too, and takes a negative
// number of streams for its default.
func (o *Options) validatePort() []error {
	var errs []error
	if port := o.SecureServing.BindPort; port < 0 || port > math.MaxUint16 {
		errs = append(errs, fmt.Errorf("--secure-port must be from 0 to %d, got %d; 0 turns it off", math.MaxUint16, port))
	}
	if streams := o.SecureServing.HTTP2MaxStreamsPerConnection; streams < 0 {
		errs = append(errs, fmt.Errorf("--http2-max-streams-per-connection must not be negative, got %d", streams))
	}
	return errs
}

// validateServing checks what libraries check when they open the port, because they would name no flag.
func (o *Options) validateServing() []error {
	serving := o.SecureServing
	if serving.BindPort <= 0 {
		return nil
	}
	var errs []error
	check := func(flags string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", flags, err))
		}
	}
	if _, err := cliflag.TLSVersion(serving.MinTLSVersion); err != nil {
		errs = append(errs, fmt.Errorf("--tls-min-version must be one of %q, got %q",
			cliflag.TLSPossibleVersions(), serving.MinTLSVersion))
	}
	if _, err := cliflag.TLSCipherSuites(serving.CipherSuites); err != nil {
		errs = append(errs, fmt.Errorf("--tls-cipher-suites: %w; --help lists the known ones", err))
	}
	_, err := cliflag.TLSCurvePreferences(serving.CurvePreferences)
	check("--tls-curve-preferences", err)
	pair := serving.ServerCert.CertKey
	switch {
	case (pair.CertFile == "") != (pair.KeyFile == ""):
		errs = append(errs, errors.New("--tls-cert-file and --tls-private-key-file need each other: set both, or neither"))
	case pair.CertFile != "":
		_, err = tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
		check("--tls-cert-file and --tls-private-key-file", err)
	}
	for _, named := range serving.SNICertKeys {
		_, err = tls.LoadX509KeyPair(named.CertFile, named.KeyFile)
		check("--tls-sni-cert-key", err)
	}
	_, err = o.Authentication.ClientCert.GetClientCAContentProvider()
	check("--client-ca-file", err)
	_, err = o.Authentication.RequestHeader.ToAuthenticationRequestHeaderConfig()
	check("--requestheader-client-ca-file", err)
	_, err = path.NewAuthorizer(o.Authorization.AlwaysAllowPaths)
	check("--authorization-always-allow-paths", err)
	for _, kubeconfig := range []struct{ flag, file string }{
		{"--authentication-kubeconfig", o.Authentication.RemoteKubeConfigFile},
		{"--authorization-kubeconfig", o.Authorization.RemoteKubeConfigFile},
	} {
		if kubeconfig.file != "" { // Otherwise --kubeconfig counts.
			_, err := loadKubeconfig(kubeconfig.flag, kubeconfig.file)
			errs = append(errs, err)
		}
	}
	return errs
}
