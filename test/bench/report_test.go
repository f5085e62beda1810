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
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// measured are three rounds of a scenario in which ours is faster than in-tree by the median.
func measured() *results {
	r := &results{Scale: 1}
	alone := scenarios[0]
	for round, speeds := range [][2]float64{{100, 150}, {120, 90}, {90, 180}} {
		r.add(alone, inTree, round+1, figures{perSecond.key: speeds[0]})
		r.add(alone, ours, round+1, figures{perSecond.key: speeds[1]})
	}
	r.add(alone, oursLifted, 1, figures{perSecond.key: 200})
	return r
}

func TestTheDocumentGetsTablesAndPlots(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	document, stored := filepath.Join(dir, "benchmarks.md"), filepath.Join(dir, "results.json")
	text := "before\n" + beginMarker + "\nof an earlier run\n" + endMarker + "\nafter\n"
	must(t, os.WriteFile(document, []byte(text), 0o600))
	must(t, measured().write(stored))
	r, err := readResults(stored)
	must(t, err)
	must(t, r.publish(options{document: document}))

	published, err := os.ReadFile(document)
	must(t, err)
	for _, wanted := range []string{
		"before\n" + beginMarker, endMarker + "\nafter\n",
		"| alone | in-tree | ours | ours, lifted |",
		"| objects/s, first rewrite to last | 100 (90–120) | 150 (90–180), 1.50× | 200, 2.00× |",
		"| alone, default: objects/s, against in-tree | ≥ 1 | 1.50 | met |",
		"| alone, limits lifted: objects/s, against in-tree | ≥ 2.2 | 2.00 | **not met** |",
		"| alone, limits lifted: objects/s, against naked, 64 | ≥ 0.9 |  | not measured |",
	} {
		if !strings.Contains(string(published), wanted) {
			t.Errorf("the document lacks %q:\n%s", wanted, published)
		}
	}
	if strings.Contains(string(published), "of an earlier run") {
		t.Error("the document still has what an earlier run wrote")
	}
	wellFormed(t, filepath.Join(dir, "benchmarks", "alone-objectsPerSecond.svg"))
}

func TestADocumentWithoutMarkersIsLeftAlone(t *testing.T) {
	t.Parallel()
	document := filepath.Join(t.TempDir(), "other.md")
	must(t, os.WriteFile(document, []byte("written by a person\n"), 0o600))
	if err := measured().publish(options{document: document}); err == nil {
		t.Error("a document without markers was accepted")
	}
	left, err := os.ReadFile(document)
	must(t, err)
	if string(left) != "written by a person\n" {
		t.Errorf("a document without markers became %q", left)
	}
}

func wellFormed(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	must(t, err)
	defer file.Close()
	for decoder := xml.NewDecoder(file); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%s is not well-formed: %v", path, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
