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

package app

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

func TestEveryVerbIsDocumented(t *testing.T) {
	root := NewCommand(genericiooptions.NewTestIOStreamsDiscard())
	if len(root.Commands()) < 9 {
		t.Fatalf("only %d verbs", len(root.Commands()))
	}
	for _, verb := range root.Commands() {
		if verb.Short == "" || verb.Long == "" || verb.ValidArgsFunction == nil {
			t.Errorf("%s lacks a description, or completion", verb.Name())
		}
		checkExamples(t, root, verb)
	}
}

// TestErrorsSayWhatToDo runs commands that fail before they reach a cluster.
func TestErrorsSayWhatToDo(t *testing.T) {
	for args, want := range map[string]string{
		"status --bogus":                        "unknown flag: --bogus\nSee kubectl svm status --help\n",
		"status --server=https://127.0.0.1:1":   "The API server could not be reached. --server, --kubeconfig and --context",
		"plan --output=xml":                     "-o xml is not known: use wide, json, yaml, or leave it out",
		"pause":                                 "name at least one resource",
		"verify":                                "--etcd-endpoints is missing",
		"verify --cacert= --cert= --key=":       "--etcd-endpoints is missing",
		"migrate --all --except=a --timeout=1s": "--timeout needs --wait",
		"preflight --kubernetes-version=":       "--kubernetes-version is empty: give it a value, or leave it out",
		"preflight --drop-version= --file=":     "is empty",
		"status --context=":                     "--context is empty: give it a value, or leave it out",
		"verify --kubeconfig= --without-key=-":  "--kubeconfig is empty",
		"plan --as-group=":                      "--as-group is empty",
		"migrate ''":                            "an argument is empty: give it a value, or leave it out",
		"run ''":                                "an argument is empty",
		"''":                                    "\nerror: name a command",
		"-- status":                             "\nerror: name a command",
		"--":                                    "\nerror: name a command",
		"--context foo":                         "\nerror: name a command, for example: kubectl svm --context=foo status\n",
		"--insecure-skip-tls-verify=false":      "\nerror: name a command",
		"statsu":                                "unknown command \"statsu\"",
		"migrate --all --except=":               "--except is empty",
		"verify --etcd-endpoints=http://127.0.0.1:1 --without-key=":        "--without-key is empty",
		"verify --etcd-endpoints=http://127.0.0.1:1 --without-key=aescbc:": "--without-key=aescbc: is not a key",
		"run a --chunk-size=1000000":                                       "--chunk-size must be between 1 and 10000",
		"run a --max-concurrent-rewrites=1000000":                          "must be between 1 and 1000, got 1000000",
		"run a --max-rewrites-per-second=NaN":                              "must be zero, which is no bound, or between",
		"run a --max-rewrites-per-second=1e-11":                            "must be zero, which is no bound, or between",
	} {
		streams, _, _, errOut := genericiooptions.NewTestIOStreams()
		line := strings.Fields(strings.ReplaceAll(args, "''", "UNSET"))
		for i := range line {
			line[i] = strings.ReplaceAll(line[i], "UNSET", "")
		}
		if code := Run(t.Context(), streams, line); code != 1 || !strings.Contains(errOut.String(), want) {
			t.Errorf("%s: exit code %d, %q lacks %q", args, code, errOut, want)
		}
	}
}

// TestPasswords wants no password of a URL to be printed. None of the servers can be reached.
func TestPasswords(t *testing.T) {
	for _, args := range []string{
		"status --server=https://bob:s3cret@127.0.0.1:1",
		"status --server=https://bob:s3cret%@127.0.0.1:1",
		"status --server=https://bob:p/s3cret@127.0.0.1:1",
		"--server=https://bob:p/s3cret@127.0.0.1:1",
		"--server=https://bob:p@s3cret@127.0.0.1:1",
		"status --server=https://bob:p%@s3cret@127.0.0.1:1",
		"status --server=bob:s3cret@127.0.0.1:1",
		"status --server=bob:s3cret@127.0.0.1:1/a",
		"status --server=bob:s3cret@",
		"status --server=https://bob@127.0.0.1:1",
		"report --server=https://bob:s3cret@127.0.0.1:1",
		"--server=https://bob:s3cret@127.0.0.1:1",
		"status --server=https://127.0.0.1:1 --proxy-url=http://bob:s3cret@127.0.0.1:1",
		"status --server=https://127.0.0.1:1 --proxy-url=http://bob:s3cret%@127.0.0.1:1",
		"status --server=https://127.0.0.1:1 --proxy-url=eve:s3cret@127.0.0.1:1",
		"verify --etcd-endpoints=http://bob:s3cret%@127.0.0.1:1",
	} {
		streams, _, out, errOut := genericiooptions.NewTestIOStreams()
		code := Run(t.Context(), streams, strings.Fields(args))
		if printed := out.String() + errOut.String(); code != 1 || strings.Contains(printed, "s3cret") ||
			strings.Contains(printed, "bob") {
			t.Errorf("%s: exit code %d, printed %s", args, code, printed)
		}
	}
}

// TestHelp wants the exit code of success only if the person asked for help, or for nothing at all.
func TestHelp(t *testing.T) {
	for args, want := range map[string]string{
		"": "Exit codes: 0 safe", "--help": "Exit codes: 0 safe", "help": "Exit codes: 0 safe", "--version": "version",
		"--context=foo --help": "Exit codes: 0 safe",
	} {
		streams, _, out, errOut := genericiooptions.NewTestIOStreams()
		if code := Run(t.Context(), streams, strings.Fields(args)); code != 0 || !strings.Contains(out.String(), want) ||
			errOut.Len() > 0 {
			t.Errorf("%s: exit code %d, printed %q and the error %q", args, code, out, errOut)
		}
	}
}

// TestSilentServer runs commands against a server that accepts requests and then says nothing. An interrupt ends them.
func TestSilentServer(t *testing.T) {
	for _, args := range []string{
		"status", "plan", "migrate --all", "run widgets", "rbac", "report", "denied", "pause widgets", "preflight",
	} {
		t.Run(args, func(t *testing.T) {
			ctx, interrupt := context.WithCancel(t.Context())
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				interrupt()
				select {
				case <-r.Context().Done():
				case <-t.Context().Done():
				}
			}))
			t.Cleanup(server.Close)
			streams, _, _, errOut := genericiooptions.NewTestIOStreams()
			code := make(chan int, 1)
			go func() { code <- Run(ctx, streams, append(strings.Fields(args), "--server="+server.URL)) }()
			select {
			case got := <-code:
				if got != 1 || errOut.String() != "error: interrupted\n" {
					t.Errorf("exit code %d, %q", got, errOut)
				}
			case <-time.After(time.Minute):
				t.Error("the command did not end")
			}
		})
	}
}

// TestTimeout waits for a server that accepts requests and then says nothing.
func TestTimeout(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-t.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	for _, args := range []string{"status --watch", "migrate --all --wait", "run widgets"} {
		streams, _, _, errOut := genericiooptions.NewTestIOStreams()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		code := Run(ctx, streams, append(strings.Fields(args), "--timeout=50ms", "--server="+server.URL))
		if code != 3 || !strings.HasPrefix(errOut.String(), "error: --timeout has passed: ") ||
			strings.Contains(errOut.String(), "could not be reached") {
			t.Errorf("%s: exit code %d, %q", args, code, errOut)
		}
		cancel()
	}
}

// TestManagerLease wants each verb that looks for a manager to look where the person says.
func TestManagerLease(t *testing.T) {
	for _, name := range []string{"status", "migrate", "preflight", "report", "run"} {
		verb, _, err := NewCommand(genericiooptions.NewTestIOStreamsDiscard()).Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		if err := verb.ParseFlags([]string{"--manager-lease=default/mine"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, wrong := range []string{"mine", "/mine", "default/", "a/b/c"} {
			err := verb.ParseFlags([]string{"--manager-lease=" + wrong})
			if err == nil || !strings.Contains(err.Error(), "NAMESPACE/NAME, for example kube-system/svm-controller-manager") {
				t.Errorf("%s --manager-lease=%s: %v", name, wrong, err)
			}
		}
	}
}

// checkExamples parses the flags of each example.
func checkExamples(t *testing.T, root, verb *cobra.Command) {
	examples := 0
	for line := range strings.Lines(verb.Example) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		line, _, _ = strings.Cut(line, " | ") // kubectl takes what comes behind
		args, isOurs := strings.CutPrefix(line, "kubectl svm ")
		if !isOurs {
			t.Errorf("%s: %q is no command of this program", verb.Name(), line)
			continue
		}
		found, rest, err := root.Find(strings.Fields(args))
		if err != nil {
			t.Errorf("%s: %q: %v", verb.Name(), line, err)
			continue
		}
		if found == verb {
			examples++
		}
		if err := found.ParseFlags(rest); err != nil {
			t.Errorf("%s: %q: %v", verb.Name(), line, err)
		}
	}
	if examples == 0 {
		t.Errorf("%s has no example", verb.Name())
	}
}
