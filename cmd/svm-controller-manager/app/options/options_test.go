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
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters:
- name: c
  cluster: {server: "https://127.0.0.1:1"}
contexts:
- name: c
  context: {cluster: c, user: u}
current-context: c
users:
- name: u
  user: {token: t}
`

type countOptions struct{ count int }

func (o *countOptions) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&o.count, "a-count", 1, "A flag of a controller.")
}

func (o *countOptions) Validate() []error {
	if o.count < 1 {
		return []error{errCount}
	}
	return nil
}

var errCount = os.ErrInvalid

func parse(t *testing.T, args ...string) (*Options, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	o := New(Controllers{
		Names:   []string{"a-controller", "b-controller"},
		Aliases: map[string]string{"a": "a-controller"},
		Options: map[string]ControllerOptions{"a-controller": &countOptions{}},
	})
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	for _, group := range o.Flags().FlagSets {
		fs.AddFlagSet(group)
	}
	if err := fs.Parse(append([]string{"--kubeconfig=" + path, "--secure-port=0"}, args...)); err != nil {
		t.Fatal(err)
	}
	return o, path
}

func TestErrorsSayWhatToDo(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"an unknown controller": {
			args: []string{"--controllers=*,-c"},
			want: []string{`"c" is not in the list of known controllers`,
				`--controllers: the known controllers are ["a-controller" "b-controller"], with the aliases ["a"]`},
		},
		"not all controllers": {
			args: []string{"--controllers=*,-*"},
			want: []string{`--controllers: the known controllers are ["a-controller" "b-controller"], with the aliases ["a"]`},
		},
		"controllers that are only left out": {
			args: []string{"--controllers=-a,-b-controller"},
			want: []string{`--controllers: "-a,-b-controller" leaves no controller: write "*,-a,-b-controller" to run all `},
		},
		"an encoding that clients do not have": {
			args: []string{"--kube-api-content-type=xml"},
			want: []string{`--kube-api-content-type must be one of ["" "application/json" "application/vnd.`, `got "xml"`},
		},
		"no requests at once": {
			args: []string{"--kube-api-burst=0"},
			want: []string{"--kube-api-burst must be positive while --kube-api-qps is, got 0"},
		},
		"a rate that is no number": {
			args: []string{"--kube-api-qps=NaN"},
			want: []string{"--kube-api-qps must be a positive number"},
		},
		"a rate that clients take for five a second": {
			args: []string{"--kube-api-qps=0"},
			want: []string{"--kube-api-qps must be a positive number, or negative for no limit"},
		},
		"a settle period in which nothing is migrated": {
			args: []string{"--settle-period=1000h"},
			want: []string{"--settle-period must be from 0s to 24h0m0s, got 1000h0m0s"},
		},
		"a kubeconfig that is not there": {
			args: []string{"--kubeconfig=/does/not/exist"},
			want: []string{"--kubeconfig: ", "no such file"},
		},
		"a lease that ends before it is given up": {
			args: []string{"--leader-elect-lease-duration=5s"},
			want: []string{"--leader-elect-lease-duration (5s), in whole seconds, " +
				"must be longer than --leader-elect-renew-deadline (10s)"},
		},
		"a lease that ends before it is given up once it is written in whole seconds": {
			args: []string{"--leader-elect-lease-duration=3900ms", "--leader-elect-renew-deadline=3800ms",
				"--leader-elect-retry-period=1s"},
			want: []string{"--leader-elect-lease-duration (3.9s), in whole seconds, must be longer"},
		},
		"a lock of another type": {
			args: []string{"--leader-elect-resource-lock=endpoints"},
			want: []string{`--leader-elect-resource-lock must be "leases", got "endpoints"`},
		},
		"a renewal that has one try": {
			args: []string{"--leader-elect-retry-period=8s"},
			want: []string{"--leader-elect-renew-deadline (10s) must be longer than twice --leader-elect-retry-period (8s)"},
		},
		"a negative shutdown timeout": {
			args: []string{"--controller-shutdown-timeout=-1s"},
			want: []string{"--controller-shutdown-timeout must not be negative"},
		},
		"a negative start interval": {
			args: []string{"--controller-start-interval=-1s"},
			want: []string{"--controller-start-interval must not be negative"},
		},
		"a negative resync period": {
			args: []string{"--min-resync-period=-1s"},
			want: []string{"--min-resync-period must not be negative"},
		},
		"negative times of caches": {
			args: []string{"--authentication-token-webhook-cache-ttl=-1s", "--authorization-webhook-cache-authorized-ttl=-1s",
				"--authorization-webhook-cache-unauthorized-ttl=-1s"},
			want: []string{"--authentication-token-webhook-cache-ttl must not be negative",
				"--authorization-webhook-cache-authorized-ttl must not be negative",
				"--authorization-webhook-cache-unauthorized-ttl must not be negative"},
		},
		"a port that is none": {
			args: []string{"--secure-port=99999", "--http2-max-streams-per-connection=-1"},
			want: []string{"[--secure-port must be from 0 to 65535, got 99999; 0 turns it off, " +
				"--http2-max-streams-per-connection must not be negative, got -1]"},
		},
		"a lease without a name": {
			args: []string{"--leader-elect-resource-name="},
			want: []string{"--leader-elect-resource-name and --leader-elect-resource-namespace must not be empty"},
		},
		"a lease without a namespace": {
			args: []string{"--leader-elect-resource-namespace="},
			want: []string{"--leader-elect-resource-name and --leader-elect-resource-namespace must not be empty"},
		},
		"names of a lease that no API server takes": {
			args: []string{"--leader-elect-resource-name=A_", "--leader-elect-resource-namespace=a.b"},
			want: []string{`--leader-elect-resource-name must be a valid name, got "A_": `,
				`--leader-elect-resource-namespace must be a valid name, got "a.b": `},
		},
		"a wrong flag of a controller": {
			args: []string{"--a-count=0"},
			want: []string{errCount.Error()},
		},
		"an unknown version of TLS": {
			args: []string{"--secure-port=1", "--tls-min-version=1.2"},
			want: []string{`--tls-min-version must be one of ["VersionTLS10" `, `got "1.2"`},
		},
		"an unknown cipher suite": {
			args: []string{"--secure-port=1", "--tls-cipher-suites=x"},
			want: []string{"--tls-cipher-suites: ", "--help"},
		},
		"a certificate without its key": {
			args: []string{"--secure-port=1", "--tls-cert-file=/does/not/exist"},
			want: []string{"--tls-cert-file and --tls-private-key-file need each other"},
		},
		"files of the port that are not there": {
			args: []string{
				"--secure-port=1", "--tls-cert-file=/does/not/exist", "--tls-private-key-file=/does/not/exist",
				"--tls-sni-cert-key=/does/not,/exist", "--client-ca-file=/does/not/exist",
				"--requestheader-client-ca-file=/does/not/exist", "--authentication-kubeconfig=/does/not/exist",
				"--authorization-kubeconfig=/does/not/exist",
			},
			want: []string{"--tls-cert-file and --tls-private-key-file: ", "--tls-sni-cert-key: ", "--client-ca-file: ",
				"--requestheader-client-ca-file: ", "--authentication-kubeconfig: ", "--authorization-kubeconfig: "},
		},
		"an address of another machine": {
			args: []string{"--secure-port=1", "--bind-address=192.0.2.1"},
			want: []string{"--bind-address and --secure-port: "},
		},
		"a path with a wildcard in the middle": {
			args: []string{"--secure-port=1", "--authorization-always-allow-paths=/x*y*"},
			want: []string{"--authorization-always-allow-paths: "},
		},
		"metrics": {
			args: []string{"--allow-metric-labels-manifest=/does/not/exist"},
			want: []string{"--allow-metric-labels-manifest: Invalid value"},
		},
		"two errors at once": {
			args: []string{"--controllers=c", "--a-count=0"},
			want: []string{`"c" is not in the list`, errCount.Error()},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, _ := parse(t, tc.args...)
			_, err := o.Config()
			if err == nil {
				t.Fatal("got no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

// TestOrderOfErrors wants the same output each time.
func TestOrderOfErrors(t *testing.T) {
	o, _ := parse(t, "--secure-port=1", "--controller-shutdown-timeout=-1s", "--controller-start-interval=-1s",
		"--min-resync-period=-1s", "--authentication-kubeconfig=/no", "--authorization-kubeconfig=/no")
	first := fmt.Sprint(o.Validate())
	for range 20 {
		if again := fmt.Sprint(o.Validate()); again != first {
			t.Fatalf("got %q, and before %q", again, first)
		}
	}
}

func TestErrorsOfLoggingNameTheFlag(t *testing.T) {
	o, _ := parse(t, "--logging-format=x", "--log-flush-frequency=-1s")
	err := fmt.Sprint(o.ApplyLogs())
	for _, want := range []string{`--logging-format: Invalid value: "x"`, "--log-flush-frequency: "} {
		if !strings.Contains(err, want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}

func TestNoCredentialsAtAll(t *testing.T) {
	o, _ := parse(t, "--kubeconfig=")
	_, err := o.Config()
	if err == nil || !strings.Contains(err.Error(), "--kubeconfig is needed") {
		t.Errorf("got %v, want an error that asks for --kubeconfig", err)
	}
}

func TestOtherLeaseIsTold(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want int
	}{
		"the default":      {},
		"another name":     {[]string{"--leader-elect-resource-name=x"}, 1},
		"another place":    {[]string{"--leader-elect-resource-namespace=x"}, 1},
		"without election": {[]string{"--leader-elect-resource-name=x", "--leader-elect=false"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
			o, _ := parse(t, tc.args...)
			WarnOfOtherLease(klog.NewContext(t.Context(), logger), o.Generic.LeaderElection)
			log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
			if got := strings.Count(log, "--leader-elect-resource-name or"); got != tc.want {
				t.Errorf("the log says %d times what another lease needs, want %d:\n%s", got, tc.want, log)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	o, _ := parse(t, "--controllers=-a,b-controller")
	c, err := o.Config()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(c.Generic.Controllers, " "), "-a-controller b-controller"; got != want {
		t.Errorf("aliases are not resolved: got %q, want %q", got, want)
	}
	election := c.Generic.LeaderElection
	lease := election.ResourceNamespace + "/" + election.ResourceName
	if !election.LeaderElect || lease != "kube-system/svm-controller-manager" {
		t.Errorf("unexpected leader election defaults: %+v", election)
	}
	if c.SecureServing != nil {
		t.Error("--secure-port=0 must serve nothing")
	}
}
