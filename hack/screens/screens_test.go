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
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	const recorded = "\x1b[1m            $ kubectl svm status a\x1b[0m\r\n            A   B\r\n            no  <1>\r\n" +
		"\x1b[2m            An explanation.\x1b[0m\r\n            not a table\r\n" +
		"\x1b[1m            $ kubectl svm status a\x1b[0m\r\n            yes\r\n"
	var out strings.Builder
	if err := run(strings.NewReader(recorded), &out, []string{"kubectl svm status=yes", "kubectl svm=no"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{">$ kubectl svm status a<", ">yes<", ">no  &lt;1&gt;<"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the drawing lacks %s:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "explanation") || strings.Contains(out.String(), "not a table") {
		t.Errorf("the drawing has what no command printed:\n%s", &out)
	}
	if err := run(strings.NewReader(recorded), &out, []string{"kubectl svm denied="}); err == nil {
		t.Error("a command that the demo has not shown is no error")
	}
}

func TestFolded(t *testing.T) {
	long := strings.Repeat("word ", 30)
	parts := folded(long + strings.Repeat("x", 200))
	for _, part := range parts {
		if len(part) > columns {
			t.Errorf("%q is too long", part)
		}
	}
	if len(parts) != 4 {
		t.Errorf("%q", parts)
	}
}
