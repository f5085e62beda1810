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

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// saying is a verb that says one thing in every way.
type saying struct {
	Output
	env  *Env
	said string
}

func (s *saying) Complete([]string) error { return nil }

func (s *saying) Run(context.Context) error {
	s.env.Notef("%s", s.said)
	_, _ = s.env.Out.Write([]byte(s.env.Paint(Plain, s.said) + "\n"))
	s.PrintTable(s.env, []Column{{Name: "Text"}}, []Row{{Cells: []any{s.said}}})
	s.PrintAnswer(s.env, []string{s.said})
	s.PrintData(s.env, []string{s.said})
	return errors.New(s.said)
}

// TestConnectionFlags wants each command that the plugin writes to act on the cluster, and as the person, of the
// command line. The words of others stay as they are.
func TestConnectionFlags(t *testing.T) {
	const webhook = `. A webhook says: "run kubectl delete, or kubectl svm plan"`
	for _, test := range []struct{ args, said, text string }{
		{"", SVM + " plan", "kubectl svm plan"},
		{"--token=secret --request-timeout=1s", SVM + " plan", "kubectl svm plan"},
		{"--context a", SVM + " rbac | " + Kubectl + " apply -f -",
			"kubectl svm --context=a rbac | kubectl --context=a apply -f -"},
		{"--server=https://bob:it@s@a:6443/b@c --proxy-url=socks5://bob:no@p:1", SVM + " plan",
			"kubectl svm --proxy-url=socks5://p:1 --server=https://a:6443/b@c plan"},
		{"--server=bob:no@a:6443 --proxy-url=http://p:1/", SVM + " plan",
			"kubectl svm --proxy-url=http://p:1/ --server=a:6443 plan"},
		{`--context=it's"a" --as=bob --as-group=b --as-group=c|d --kubeconfig=/tmp/k`,
			"do: " + Kubectl + " get svm a --watch",
			`do: kubectl --as=bob --as-group=b --as-group='c|d' --context='it'\''s"a"' --kubeconfig=/tmp/k get svm a --watch`},
	} {
		streams, _, out, errOut := genericiooptions.NewTestIOStreams()
		env := &Env{IOStreams: streams}
		cmd := Command(env, &saying{
			Output: Output{Format: JSON, formats: []string{JSON}}, env: env, said: test.said + webhook,
		}, &cobra.Command{Use: "say", SilenceErrors: true, SilenceUsage: true})
		genericclioptions.NewConfigFlags(true).AddFlags(cmd.Flags())
		cmd.SetArgs(strings.Fields(test.args))
		ExitCode(cmd.ExecuteContext(t.Context()), env)
		text := test.text + webhook
		if want := text + "\nerror: " + text + "\n"; errOut.String() != want {
			t.Errorf("%v: got\n%s\nwant\n%s", test.args, errOut, want)
		}
		inString, _ := json.Marshal(text)
		plain, _ := json.Marshal(addFlags(test.said+webhook, ""))
		want := fmt.Sprintf("%s\nTEXT\n%s\n[\n  %s\n]\n[\n  %s\n]\n", text, text, inString, plain)
		if out.String() != want {
			t.Errorf("%v: got\n%s\nwant\n%s", test.args, out, want)
		}
	}
}

// TestEveryConnectionFlag wants each flag that kubectl has for all its commands to be in the commands that the plugin
// prints, or to be left out on purpose.
func TestEveryConnectionFlag(t *testing.T) {
	leftOut := sets.New(
		"token", "username", "password", // They would be left in logs.
		"namespace", "cache-dir", // The plugin does not have them.
		"request-timeout", "disable-compression", // They select nothing.
	)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().AddFlags(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		if connecting.Has(f.Name) == leftOut.Has(f.Name) {
			t.Errorf("--%s has to be in one of the lists", f.Name)
		}
	})
	for name := range connecting {
		if flags.Lookup(name) == nil {
			t.Errorf("kubectl has no flag --%s", name)
		}
	}
}
