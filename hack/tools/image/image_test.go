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
	"debug/buildinfo"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const (
	version  = "v1.2.3+test"
	revision = "0123456789abcdef0123456789abcdef01234567"
)

// TestImage runs make image in two copies of this tree, in which nothing is the same but the sources, and looks into
// what it built.
func TestImage(t *testing.T) {
	index, first := openImage(t, buildCopy(t, "first", "umask 022; TZ=UTC make image"))
	_, second := openImage(t, buildCopy(t, "another/folder", `echo GOFLAGS=-tags=kept >goenv
		umask 077; TZ=Asia/Tokyo GOENV="${PWD}/goenv" GOFLAGS=-tags=mine make image`))
	if first.Digest != second.Digest {
		t.Errorf("two builds of the same sources have the digests %s and %s", first.Digest, second.Digest)
	}
	if got := first.Annotations["io.containerd.image.name"]; got != "registry.example/svm:v1.2.3-test" {
		t.Errorf("the image is named %q", got)
	}
	if err := validate.Index(index); err != nil {
		t.Errorf("the image is not valid: %v", err)
	}

	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, descriptor := range manifest.Manifests {
		platforms = append(platforms, descriptor.Platform.String())
		image, err := index.Image(descriptor.Digest)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(descriptor.Platform.Architecture, func(t *testing.T) {
			checkImage(t, image, descriptor.Platform.Architecture)
		})
	}
	if !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64"}) {
		t.Errorf("the image is for %v", platforms)
	}
}

// TestProgramOfThisMachine makes sure that no program gets into the image that others could not build: go test builds
// without -trimpath.
func TestProgramOfThisMachine(t *testing.T) {
	if _, err := readProgram(os.Args[0]); err == nil || !strings.Contains(err.Error(), "-trimpath") {
		t.Errorf("a program with the paths of this machine was accepted: %v", err)
	}
}

// buildCopy copies what git knows of this tree, or would add, runs a command there, and returns the folder of the
// image.
func buildCopy(t *testing.T, folder, command string) string {
	t.Helper()
	folder = filepath.Join(t.TempDir(), folder)
	build := exec.Command("bash", "-c", `source hack/lib.sh
		mkdir -p "$1"
		existing . | tar --create --files-from=- | tar --extract --directory="$1"
		cd "$1"
		`+command, "bash", folder)
	build.Dir = "../../.."
	build.Env = append(os.Environ(), "GOWORK=", "SOURCE_DATE_EPOCH=1700000000",
		"VERSION="+version, "REVISION="+revision, "IMAGE=registry.example/svm")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, output)
	}
	return filepath.Join(folder, "_output", "image")
}

// openImage returns the only image index of a layout, and what the layout says of it.
func openImage(t *testing.T, folder string) (v1.ImageIndex, v1.Descriptor) {
	t.Helper()
	all, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := all.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("the layout must have one image, and has %+v, %v", manifest, err)
	}
	index, err := all.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return index, manifest.Manifests[0]
}

func checkImage(t *testing.T, image v1.Image, architecture string) {
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" {
		t.Errorf("the user is %q", config.Config.User)
	}
	for label, want := range map[string]string{
		"version": version, "revision": revision, "created": "2023-11-14T22:13:20Z", "licenses": "Apache-2.0",
	} {
		if got := config.Config.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("the label %s is %q, want %q", label, got, want)
		}
	}

	root := t.TempDir()
	got := unpack(t, image, root)
	if want := []string{
		"etc", "etc/group", "etc/passwd", "etc/ssl", "etc/ssl/certs", "etc/ssl/certs/ca-certificates.crt",
		"svm-controller-manager", "usr", "usr/share", "usr/share/sbom",
		"usr/share/sbom/svm-controller-manager.spdx.json",
	}; !slices.Equal(got, want) {
		t.Errorf("the image has %q\nwant %q", got, want)
	}
	certificates := read(t, root, "etc/ssl/certs/ca-certificates.crt")
	count := 0
	for block, rest := pem.Decode(certificates); block != nil; block, rest = pem.Decode(rest) {
		count++
	}
	if count < 50 {
		t.Errorf("the image has %d CA certificates", count)
	}
	info, err := buildinfo.ReadFile(filepath.Join(root, "svm-controller-manager"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(info.Settings, debug.BuildSetting{Key: "GOARCH", Value: architecture}) {
		t.Errorf("the program is not for %s", architecture)
	}
	checkSBOM(t, read(t, root, "usr/share/sbom/svm-controller-manager.spdx.json"), info)
	if architecture == runtime.GOARCH {
		runIn(t, root, config.Config.Entrypoint[0])
	}
}

// unpack writes the files of an image into a folder. All must belong to root, and only root may write them.
func unpack(t *testing.T, image v1.Image, folder string) []string {
	t.Helper()
	content := mutate.Extract(image)
	defer content.Close()
	var names []string
	for reader := tar.NewReader(content); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
		if header.Uid != 0 || header.Gid != 0 || header.Mode&^0o755 != 0 {
			t.Errorf("%s belongs to %d:%d and has mode %o", header.Name, header.Uid, header.Gid, header.Mode)
		}
		path := filepath.Join(folder, header.Name)
		if header.Typeflag == tar.TypeDir {
			err = os.Mkdir(path, 0o755)
		} else {
			var bytes []byte
			bytes, err = io.ReadAll(reader)
			err = errors.Join(err, os.WriteFile(path, bytes, 0o755))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, root, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// checkSBOM compares the packages of the SBOM with what the linker wrote into the program.
func checkSBOM(t *testing.T, content []byte, info *debug.BuildInfo) {
	t.Helper()
	var document struct {
		Packages []struct{ Name, VersionInfo string }
	}
	if err := json.Unmarshal(content, &document); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, item := range document.Packages {
		got[item.Name] = item.VersionInfo
	}
	if got[rootsModule] == "" {
		t.Errorf("the SBOM does not tell which version of %s the CA certificates are from", rootsModule)
	}
	want := map[string]string{rootsModule: got[rootsModule], "stdlib": info.GoVersion}
	for _, module := range info.Deps {
		want[module.Path] = module.Version
	}
	for _, own := range []string{info.Path, info.Main.Path, "sigs.k8s.io/svm-api"} {
		want[own] = version
	}
	if !maps.Equal(got, want) || len(document.Packages) != len(want) {
		t.Errorf("the SBOM lists %v\nwant %v", got, want)
	}
}

// runIn runs a program with a folder as its root, as the user of the image.
func runIn(t *testing.T, root, program string) {
	t.Helper()
	command := exec.Command(program, "--version")
	command.Dir, command.Env = "/", []string{}
	command.SysProcAttr = &syscall.SysProcAttr{
		Chroot:      root,
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 65532, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 65532, HostID: os.Getgid(), Size: 1}},
	}
	if output, err := command.CombinedOutput(); err != nil || !strings.Contains(string(output), version) {
		t.Errorf("%s --version: %v\n%s", program, err, output)
	}
}
