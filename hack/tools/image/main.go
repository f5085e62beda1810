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

// Image writes a container image as an OCI layout, from programs that go build made, one for each platform:
//
//	image -name svm-controller-manager:v0.1.0 -version v0.1.0 -revision 0123abcd -to FOLDER PROGRAM...
//
// What it writes depends on its arguments, the programs, SOURCE_DATE_EPOCH and the release of Go that built it, and on
// nothing else.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

const source = "https://github.com/kubernetes-sigs/svm-controller-manager"

// release is what the images for all platforms have in common.
type release struct {
	title    string    // the name of the program
	version  string    // as its programs tell it
	revision string    // the commit
	created  time.Time // when that was committed
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run() error {
	var of release
	flag.StringVar(&of.version, "version", "", "the version of the release")
	flag.StringVar(&of.revision, "revision", "", "the commit that the programs were built from")
	to := flag.String("to", "", "the folder of the layout, which is replaced")
	reference := flag.String("name", "", "the name and the tag that the image has where it is loaded")
	flag.Parse()
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH must be the time of the commit, in seconds since 1970: %w", err)
	}
	of.created = time.Unix(seconds, 0).UTC()
	tag, err := name.NewTag(*reference)
	if err != nil {
		return fmt.Errorf("-name: %w", err)
	}
	if *to == "" || flag.NArg() == 0 {
		return errors.New("no folder to write to, or no programs: see -help")
	}

	of.title = filepath.Base(flag.Arg(0))
	index, err := buildIndex(of, flag.Args())
	if err != nil {
		return err
	}
	return write(*to, tag, index)
}

// buildIndex returns an image index that lists an image for each program.
func buildIndex(of release, paths []string) (v1.ImageIndex, error) {
	base, err := baseLayer(of.created)
	if err != nil {
		return nil, err
	}
	index := v1.ImageIndex(empty.Index)
	for _, path := range paths {
		program, err := readProgram(path)
		if err != nil {
			return nil, err
		}
		image, err := buildImage(of, program, base)
		if err != nil {
			return nil, fmt.Errorf("building an image of %s: %w", path, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: program.os, Architecture: program.architecture}},
		})
	}
	return mutate.Annotations(index, of.labels()).(v1.ImageIndex), nil
}

func (r release) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    r.title,
		"org.opencontainers.image.source":   source,
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.version":  r.version,
		"org.opencontainers.image.revision": r.revision,
		"org.opencontainers.image.created":  r.created.Format(time.RFC3339),
	}
}

// write writes a layout with the image index in it, and prints the name and the digest.
func write(folder string, tag name.Tag, index v1.ImageIndex) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	written, err := layout.Write(folder, empty.Index)
	if err != nil {
		return fmt.Errorf("writing the layout: %w", err)
	}
	// Skopeo and podman select an image of a layout by its tag. Containerd reads the whole name from an annotation of
	// its own. The tools of Docker call docker.io what this library calls index.docker.io.
	full := strings.TrimPrefix(tag.Name(), "index.")
	names := map[string]string{"org.opencontainers.image.ref.name": tag.TagStr(), "io.containerd.image.name": full}
	if err := written.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return fmt.Errorf("writing the image: %w", err)
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s@%s\n", full, digest)
	return nil
}
