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

// Package verify is the command that counts the objects in etcd by the version and the key that they are stored with.
package verify

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/stored"
)

const (
	long = `Count the objects in etcd by the version in which they are stored and the key with which they are encrypted.

It checks the StorageStates against the stored bytes. It never writes. It reads at one revision of etcd, at most 50
objects at a time, and prints no contents of objects.

On a control plane node of kubeadm the certificates are in /etc/kubernetes/pki/etcd: ca.crt, server.crt and server.key.

RESOURCE is the plural of a resource with its group, for example widgets.example.com. Without RESOURCE the command reads
all of etcd. It takes neither short names nor patterns, because it does not ask an API server which resources there are.

The command compares what it finds with the StorageStates, which it reads from etcd at the same revision. If the
StorageStates are encrypted, it reads them from the API server, and nothing else. The version of an encrypted object
cannot be read, so the command shows only the keys of encrypted objects.

With --without-key, -o json has the number of objects of each key in the field "keys".

Exit codes: 0 nothing contradicts the StorageStates, 1 error, 2 a StorageState omits a version that is stored, bytes are
in no format that API servers write, or an object is encrypted with a key of --without-key.`
	example = `  # Everything, by version and key
  kubectl svm verify --etcd-endpoints=https://127.0.0.1:2379 --cacert=ca.crt --cert=client.crt --key=client.key

  # Does any object need the old encryption key?
  kubectl svm verify --etcd-endpoints=http://127.0.0.1:2379 --without-key=aescbc:key1

  # Is a secret not encrypted?
  kubectl svm verify --etcd-endpoints=http://127.0.0.1:2379 --without-key=- secrets`

	dialTimeout = 10 * time.Second
	// progressEvery is how often a person at a terminal sees how far the command is.
	progressEvery = time.Second
)

// Options are what the command needs.
type Options struct {
	*cli.Env
	Etcd
	Output cli.Output
	// Names are the resources that the person named. None means all.
	Names []string
	// WithoutKeys are keys that no object may be encrypted with. notEncrypted stands for none.
	WithoutKeys []string
}

// notEncrypted is in the place of a key if an object is not encrypted.
const notEncrypted = "-"

// providers are what API servers encrypt with.
var providers = []string{"aescbc", "aesgcm", "secretbox", "kms:v1", "kms:v2"}

// ErrNotCompared means that the objects were counted, but that the StorageStates could not be read.
var ErrNotCompared = errors.New("the StorageStates are encrypted in etcd, and the API server did not return them")

// Etcd says how etcd is reached.
type Etcd struct {
	Endpoints []string
	Prefix    string
	TLS       transport.TLSInfo
}

// AddTo adds the flags to a command.
func (e *Etcd) AddTo(flags *pflag.FlagSet) {
	flags.StringSliceVar(&e.Endpoints, "etcd-endpoints", nil, "URLs of the etcd members")
	// kubectl has flags of its own for certificates, which are about the API server.
	flags.StringVar(&e.TLS.TrustedCAFile, "cacert", "", "File with the CA certificates that verify etcd")
	flags.StringVar(&e.TLS.CertFile, "cert", "", "File with the client certificate for etcd")
	flags.StringVar(&e.TLS.KeyFile, "key", "", "File with the private key of the client certificate")
	flags.StringVar(&e.Prefix, "prefix", "/registry", "Prefix of the keys in etcd: --etcd-prefix of the API servers")
}

// Validate checks the flags before any request is sent.
func (e *Etcd) Validate() error {
	if (e.TLS.CertFile == "") != (e.TLS.KeyFile == "") {
		return errors.New("--cert and --key belong together: give both, or none")
	}
	return nil
}

// NewCommand returns the command.
func NewCommand(env *cli.Env) *cobra.Command {
	o := &Options{Env: env}
	cmd := cli.Command(env, o, &cobra.Command{
		Use:               "verify --etcd-endpoints=URL,... [RESOURCE...]",
		Short:             "Count the objects in etcd by version and encryption key",
		Long:              long,
		Example:           example,
		ValidArgsFunction: cli.CompleteResources(env),
	})
	o.Etcd.AddTo(cmd.Flags())
	cmd.Flags().StringSliceVar(&o.WithoutKeys, "without-key", nil,
		"Exit with code 2 if an object is encrypted with this key, as the column ENCRYPTED WITH shows it. A KMS v2 key "+
			"without key ID matches all its IDs; - matches objects that are not encrypted, but for masterleases, "+
			"peerserverleases and ranges, which API servers never encrypt")
	o.Output.AddTo(cmd, cli.Wide, cli.JSON, cli.YAML)
	return cmd
}

// Complete fills the options from the arguments. It makes no clients, because most runs ask no API server.
func (o *Options) Complete(args []string) error {
	o.Names = args
	return nil
}

// Validate checks the options before any request is sent.
func (o *Options) Validate() error {
	if len(o.Endpoints) == 0 {
		return errors.New("--etcd-endpoints is missing: name the members of etcd, for example https://127.0.0.1:2379")
	}
	for _, key := range o.WithoutKeys {
		named := func(provider string) bool { return strings.HasPrefix(key, provider+":") && key != provider+":" }
		if key != notEncrypted && !slices.ContainsFunc(providers, named) {
			return fmt.Errorf("--without-key=%s is not a key: name its provider too, for example aescbc:key1. The "+
				"providers are %s", key, strings.Join(providers, ", "))
		}
	}
	if i := slices.IndexFunc(o.Names, stored.NeverEncrypted); i >= 0 && slices.Contains(o.WithoutKeys, notEncrypted) {
		return fmt.Errorf("API servers never encrypt %s, so --without-key=- is not about it: leave the name out", o.Names[i])
	}
	if err := o.Etcd.Validate(); err != nil {
		return err
	}
	return o.Output.Validate()
}

// Run counts and prints.
func (o *Options) Run(ctx context.Context) error {
	survey, err := o.Survey(ctx)
	if err != nil && !errors.Is(err, ErrNotCompared) {
		return err
	}
	return cmp.Or(o.print(&survey, err), err)
}

// Survey counts. The survey is complete also if the error is ErrNotCompared.
func (o *Options) Survey(ctx context.Context) (stored.Survey, error) {
	etcd, err := o.connect(ctx)
	if err != nil {
		return stored.Survey{}, err
	}
	defer func() { _ = etcd.Close() }() // Nothing was written.
	defer o.Overwrite("")
	options := stored.CountOptions{Prefix: o.Prefix, Names: o.Names, Keys: o.WithoutKeys}
	survey, err := stored.Count(ctx, etcd, options, o.progress())
	if err == nil {
		err = o.checkKeys(&survey)
	}
	if err == nil && survey.StatesUnread > 0 {
		err = o.readStates(ctx, &survey)
	}
	if err != nil {
		return survey, err // Without the StorageStates a name without objects may be right.
	}
	return survey, o.checkNames(&survey)
}

// checkKeys returns an error if --without-key is about a name of which no object was found. Neither a mistake in a name
// nor a resource in another etcd must look like a resource whose objects have none of the keys.
func (o *Options) checkKeys(survey *stored.Survey) error {
	for _, name := range o.Names {
		if len(o.WithoutKeys) > 0 && !survey.HasObjects(name) {
			return fmt.Errorf("no object of %q was read, so this proves nothing about its encryption keys. Name the plural "+
				"and the group of the resource, or the plural alone if its paths in etcd lack the group. If the API servers have "+
				"--etcd-servers-overrides, run the command for that etcd too. If the resource has no objects, leave its name "+
				"out", name)
		}
	}
	return nil
}

// checkNames returns an error if nothing was found of a name. A mistake in a name must not look like a resource without
// objects.
func (o *Options) checkNames(survey *stored.Survey) error {
	for _, name := range o.Names {
		if !survey.Knows(name) {
			return fmt.Errorf("etcd has no object of %q under %s, and there is no StorageState of it. Name the plural and "+
				"the group of the resource, for example secrets or widgets.example.com. If the name is right, nothing is stored",
				name, o.Prefix)
		}
	}
	return nil
}

// names are the endpoints as they may be printed.
func (e *Etcd) names() (names []string) {
	for _, endpoint := range e.Endpoints {
		names = append(names, cli.WithoutPassword(endpoint))
	}
	return names
}

func (e *Etcd) connect(ctx context.Context) (*clientv3.Client, error) {
	config := clientv3.Config{
		Context: ctx, Endpoints: e.Endpoints, DialTimeout: dialTimeout, Logger: zap.NewNop(),
		// An endpoint that does not answer is an error after DialTimeout.
		DialKeepAliveTime: dialTimeout, DialKeepAliveTimeout: dialTimeout,
		MaxUnaryRetries: 3, // Without a leader, etcd takes seconds to refuse a read.
	}
	if !e.TLS.Empty() || e.TLS.TrustedCAFile != "" {
		var err error
		if config.TLS, err = e.TLS.ClientConfig(); err != nil {
			return nil, fmt.Errorf("reading the certificates for etcd: %w", err)
		}
	}
	etcd, err := clientv3.New(config)
	if err != nil {
		return nil, fmt.Errorf("creating a client of etcd: %w", cli.HidePassword(err))
	}
	asking, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	folder := strings.TrimSuffix(e.Prefix, "/") + "/"
	answer, err := etcd.Get(asking, folder, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
	if err == nil && len(answer.Kvs) == 0 {
		_ = etcd.Close()
		return nil, fmt.Errorf("etcd at %v has no key under %s: set --prefix to the --etcd-prefix of the API servers",
			e.names(), folder)
	}
	if err != nil {
		_ = etcd.Close()
		return nil, fmt.Errorf("asking etcd at %v: %w\nCheck --etcd-endpoints, --cacert, --cert and --key", e.names(),
			errors.Join(err, e.diagnose(ctx, config.TLS)))
	}
	return etcd, nil
}

// diagnose requests the version of each endpoint over HTTP, because the client of etcd only reports a timeout. It
// returns the first error.
func (e *Etcd) diagnose(ctx context.Context, config *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	asking := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	for _, endpoint := range e.names() {
		if !strings.Contains(endpoint, "://") {
			continue // The client of etcd takes an address alone, too.
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/version", nil)
		if err != nil {
			return err
		}
		answer, err := asking.Do(request)
		if err != nil {
			return err
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", request.URL, answer.Status)
		}
	}
	return nil
}

// progress returns a function that shows on a terminal how many objects were read.
func (o *Options) progress() func(int64) {
	last := o.Clock.Now()
	return func(objects int64) {
		if now := o.Clock.Now(); now.Sub(last) >= progressEvery {
			last = now
			o.Overwrite(fmt.Sprintf("%d objects read", objects))
		}
	}
}

// readStates asks the API server for the StorageStates, because they are encrypted in etcd.
func (o *Options) readStates(ctx context.Context, survey *stored.Survey) error {
	clients, err := o.Connect()
	if err == nil {
		list, listing := clients.Migration.StorageStates().List(ctx, metav1.ListOptions{})
		if err = listing; err == nil {
			survey.States = list.Items
			return nil
		}
	}
	return fmt.Errorf("%w: %w", ErrNotCompared, err)
}
