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
	"context"
	"testing"
	"time"
)

func TestTurns(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	release, err := takeTurn(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 3*pollInterval)
	defer cancel()
	if _, err := takeTurn(short, 1); err == nil {
		t.Error("two have the only turn")
	}
	second, err := takeTurn(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer second()
	time.AfterFunc(3*pollInterval, release)
	third, err := takeTurn(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	third()
}

func TestCalm(t *testing.T) {
	n, err := runnable()
	if err != nil {
		t.Fatal(err)
	}
	if n < 1 {
		t.Errorf("%d threads run, without the one that asks", n)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := awaitCalm(ended); err == nil {
		t.Error("a start that was given up waited for a calm machine without an error")
	}
}
