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
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestBrokenLinks(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("other.md", "# The `--flag` of [others](x.md), explained\n## Twice\n## Twice\n```\n# no heading\n```\n")
	document := write("document.md", strings.Join([]string{
		"# Here", "[web](https://example.com/#x) [file](other.md) [folder](.) [here](#here)",
		"[flag](other.md#the---flag-of-others-explained) [broken over\nlines](other.md#twice-1)",
		"`[in code](nowhere)`", "```", "[in a fence](nowhere)", "```",
		"[gone](gone.md) [no such heading](#there) [no heading](other.md#no-heading) [gone](other.md#twice-2)",
	}, "\n"))
	broken, err := brokenLinks([]string{document})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"gone.md", "#there", "other.md#no-heading", "other.md#twice-2"}
	if len(broken) != len(want) {
		t.Fatalf("broken links: %q", broken)
	}
	for i := range want {
		if !strings.HasPrefix(broken[i], document+": the link "+want[i]+": ") {
			t.Errorf("%q is not about %s", broken[i], want[i])
		}
	}
}

func TestMissingFiles(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "pkg", "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	document := filepath.Join(root, "document.md")
	const content = "| it | `a/there.go`, `pkg/a`, `there.go`: `here.go` in `b/there.go` |\n"
	for path, content := range map[string]string{filepath.Join(root, "pkg", "a", "there.go"): "", document: content} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	missing, err := missingFiles(document, root)
	if err != nil || len(missing) != 2 || !strings.Contains(missing[0], " here.go") ||
		!strings.Contains(missing[1], " b/there.go") {
		t.Errorf("missing: %q, %v", missing, err)
	}
}

func TestCodeIn(t *testing.T) {
	const content = "| a | `Not` |\n\n| reason | of |\n| --- | --- |\n| `Failed`, `One`, `Two` | `Other` |\n" +
		"| `Three` |\ntext\n| `No` |\n"
	if found := codeIn("## A\n### One\n#### B\n### Two\n", "###"); !slices.Equal(found, []string{"One", "Two"}) {
		t.Errorf("found the headings %q", found)
	}
	if found := codeIn(content, "| reason |"); !slices.Equal(found, []string{"One", "Two", "Three"}) {
		t.Errorf("found %q", found)
	}
}

// TestReasons wants constants of other names to be left alone.
func TestReasons(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file.go")
	const content = "package p\n\nconst (\n\teventA = \"A\"\n\teventB string = \"B\"\n" +
		"\tmaxEvent = 3\n\teventCount = 4\n)\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	values, err := stringConstants(file, "event")
	if err != nil || !slices.Equal(values, []string{"A", "B"}) {
		t.Errorf("constants: %q, %v", values, err)
	}
	if _, err := stringConstants(file, "other"); err == nil {
		t.Error("a prefix that no constant has is no error")
	}
}
