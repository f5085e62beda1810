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

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/pem"
	"fmt"
	"io"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	passwd = "root:x:0:0:root:/:/nologin\nnonroot:x:65532:65532:nonroot:/:/nologin\n"
	group  = "root:x:0:\nnonroot:x:65532:\n"

	rootsModule = "golang.org/x/crypto/x509roots/fallback"
)

// file is a file of an image, or a folder if its path ends in a slash. It belongs to root, and only root may write it.
type file struct {
	path    string
	mode    int64
	content []byte
}

// baseLayer returns the layer that all platforms share: what Go's libraries look for in a system.
func baseLayer(created time.Time) (v1.Layer, error) {
	return layer(created, []file{
		{path: "etc/", mode: 0o755},
		{path: "etc/group", mode: 0o644, content: []byte(group)},
		{path: "etc/passwd", mode: 0o644, content: []byte(passwd)},
		{path: "etc/ssl/", mode: 0o755},
		{path: "etc/ssl/certs/", mode: 0o755},
		{path: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: certificates()},
	})
}

// buildImage returns an image that has the program in a layer above the base.
func buildImage(of release, from *program, base v1.Layer) (v1.Image, error) {
	sbom, err := from.sbom(of)
	if err != nil {
		return nil, err
	}
	above, err := layer(of.created, []file{
		{path: from.name, mode: 0o755, content: from.content},
		{path: "usr/", mode: 0o755},
		{path: "usr/share/", mode: 0o755},
		{path: "usr/share/sbom/", mode: 0o755},
		{path: "usr/share/sbom/" + from.name + ".spdx.json", mode: 0o644, content: sbom},
	})
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.Time{Time: of.created}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		OS:           from.os,
		Architecture: from.architecture,
		Created:      created,
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: []string{"/" + from.name},
			// Numbers, because the kubelet cannot tell whether a name is not root.
			User:       "65532:65532",
			WorkingDir: "/",
			Labels:     of.labels(),
		},
	})
	if err != nil {
		return nil, err
	}
	image, err = mutate.Append(image,
		mutate.Addendum{Layer: base, History: v1.History{Created: created, CreatedBy: "CA certificates and users"}},
		mutate.Addendum{Layer: above, History: v1.History{Created: created, CreatedBy: "the program and its SBOM"}},
	)
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(image, of.labels()).(v1.Image), nil
}

func layer(created time.Time, files []file) (v1.Layer, error) {
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	for _, f := range files {
		header := tar.Header{Name: f.path, Mode: f.mode, Size: int64(len(f.content)), ModTime: created}
		if header.Typeflag = tar.TypeReg; strings.HasSuffix(f.path, "/") {
			header.Typeflag = tar.TypeDir
		}
		if err := writer.WriteHeader(&header); err != nil {
			return nil, fmt.Errorf("adding %s to a layer: %w", f.path, err)
		}
		if _, err := writer.Write(f.content); err != nil {
			return nil, fmt.Errorf("adding %s to a layer: %w", f.path, err)
		}
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching,
		tarball.WithCompressionLevel(gzip.DefaultCompression))
}

// certificates returns the roots that Mozilla trusts, in PEM. It leaves out those that Mozilla trusts with
// constraints, because a file of certificates cannot express them.
func certificates() []byte {
	var file bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			file.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return file.Bytes()
}
