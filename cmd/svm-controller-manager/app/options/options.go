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

// Package options turns the command line into a Config: defaults, flags, validation.
package options

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	apiserveroptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/metrics"
	metricsfeatures "k8s.io/component-base/metrics/features"
	cmconfig "k8s.io/controller-manager/config"
	cmconfigv1alpha1 "k8s.io/controller-manager/config/v1alpha1"
	cmoptions "k8s.io/controller-manager/options"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/app/config"
	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/features"
)

const (
	// DefaultSecurePort is next to the ports of the controller managers of Kubernetes.
	DefaultSecurePort = 10262

	defaultShutdownTimeout = 10 * time.Second
	leaseNamespace         = "kube-system"
	selfSignedHost         = "localhost"
)

// ControllerOptions are the flags of one controller.
type ControllerOptions interface {
	AddFlags(fs *pflag.FlagSet)
	Validate() []error
}

// Controllers is what the options need to know of the registered controllers.
type Controllers struct {
	Names             []string
	DisabledByDefault []string
	Aliases           map[string]string
	// Options holds the flags of those controllers that have any, by name.
	Options map[string]ControllerOptions
}

// Options are the flags of the manager.
type Options struct {
	Generic        *cmoptions.GenericControllerManagerConfigurationOptions
	SecureServing  *apiserveroptions.SecureServingOptionsWithLoopback
	Authentication *apiserveroptions.DelegatingAuthenticationOptions
	Authorization  *apiserveroptions.DelegatingAuthorizationOptions
	Metrics        *metrics.Options
	Logs           *logs.Options
	Observation    *ObservationOptions

	ShutdownTimeout time.Duration

	controllers Controllers
	parsed      cliflag.NamedFlagSets
}

// New returns options with defaults.
func New(controllers Controllers) *Options {
	generic := cmconfigv1alpha1.GenericControllerManagerConfiguration{}
	cmconfigv1alpha1.RecommendedDefaultGenericControllerManagerConfiguration(&generic)
	internal := cmconfig.GenericControllerManagerConfiguration{}
	if err := cmconfigv1alpha1.Convert_v1alpha1_GenericControllerManagerConfiguration_To_config_GenericControllerManagerConfiguration(&generic, &internal, nil); err != nil {
		panic(err) // a conversion between two versions of one library's type
	}
	internal.LeaderElection.ResourceName = names.Manager
	internal.LeaderElection.ResourceNamespace = leaseNamespace
	// A client picks the best encoding of its API by itself; one for all would break clients of custom resources, for which
	// there is JSON alone.
	internal.ClientConnection.ContentType = ""

	o := &Options{
		Generic:         cmoptions.NewGenericControllerManagerConfigurationOptions(&internal),
		SecureServing:   apiserveroptions.NewSecureServingOptions().WithLoopback(),
		Authentication:  apiserveroptions.NewDelegatingAuthenticationOptions(),
		Authorization:   apiserveroptions.NewDelegatingAuthorizationOptions(),
		Metrics:         metrics.NewOptions(),
		Logs:            logs.NewOptions(),
		Observation:     NewObservationOptions(),
		ShutdownTimeout: defaultShutdownTimeout,
		controllers:     controllers,
	}
	o.Authentication.RemoteKubeConfigFileOptional = true
	o.Authorization.RemoteKubeConfigFileOptional = true
	// Without a directory a self-signed certificate stays in memory: a static pod's file system is read-only.
	o.SecureServing.ServerCert.CertDirectory = ""
	o.SecureServing.ServerCert.PairName = names.Manager
	o.SecureServing.BindPort = DefaultSecurePort
	return o
}

// Flags returns all flags in named groups.
func (o *Options) Flags() *cliflag.NamedFlagSets {
	fss := &o.parsed
	if len(fss.Order) > 0 {
		return fss
	}
	o.Generic.AddFlags(fss, o.controllers.Names, o.controllers.DisabledByDefault, o.controllers.Aliases)
	generic := fss.FlagSet("generic")
	generic.Lookup("kube-api-content-type").Usage = "Content type of requests sent to the API server. Empty lets each client choose."
	generic.StringVar(&o.Generic.ClientConnection.Kubeconfig, "kubeconfig", o.Generic.ClientConnection.Kubeconfig,
		"Path to the kubeconfig file with address and credentials of the API server. Without it the pod's service account is used.")
	generic.DurationVar(&o.ShutdownTimeout, "controller-shutdown-timeout", o.ShutdownTimeout,
		"How long to wait for controllers to end before the process exits and leaves its lease to expire. Zero waits for ever.")
	o.Observation.AddFlags(fss.FlagSet("observation"))
	for _, name := range o.controllers.Names {
		if controller := o.controllers.Options[name]; controller != nil {
			controller.AddFlags(fss.FlagSet(name))
		}
	}
	o.SecureServing.AddFlags(fss.FlagSet("secure serving"))
	o.Authentication.AddFlags(fss.FlagSet("authentication"))
	o.Authorization.AddFlags(fss.FlagSet("authorization"))
	authentication := fss.FlagSet("authentication")
	authentication.Lookup("authentication-kubeconfig").Usage = "Path to the kubeconfig file of the API server that reviews tokens and " +
		"tells the cluster's client CA. Without it --kubeconfig is used, or the pod's service account."
	authentication.Lookup("authentication-skip-lookup").Usage = "If true, the client CA of the cluster is not looked up, and client certificates are " +
		"accepted only if --client-ca-file is given."
	// Nothing is looked up while the port opens, so there is no failure to tolerate; see applySecureServing.
	authentication.Lookup("authentication-tolerate-lookup-failure").Hidden = true
	fss.FlagSet("authorization").Lookup("authorization-kubeconfig").Usage = "Path to the kubeconfig file of the API server that reviews access. " +
		"Without it --kubeconfig is used, or the pod's service account."
	o.Metrics.AddFlags(fss.FlagSet("metrics"))
	logsapi.AddFlags(o.Logs, fss.FlagSet("logs"))
	features.DefaultMutableFeatureGate.AddFlag(fss.FlagSet("feature gates"))
	global := fss.FlagSet("global")
	global.Bool("version", false, "Print the version and quit.")
	globalflag.AddGlobalFlags(global, names.Manager, logs.SkipLoggingConfigurationFlags())
	return fss
}

// Validate checks every flag and tells all that is wrong at once.
func (o *Options) Validate() error {
	var errs []error
	errs = append(errs, o.Generic.Validate(o.controllers.Names, o.controllers.DisabledByDefault, o.controllers.Aliases)...)
	errs = append(errs, o.validateControllers()...)
	errs = append(errs, o.validateElection()...)
	errs = append(errs, o.validateKubeconfig()...)
	errs = append(errs, o.SecureServing.Validate()...)
	errs = append(errs, o.Authentication.Validate()...)
	errs = append(errs, o.Authorization.Validate()...)
	errs = append(errs, o.Metrics.Validate()...)
	errs = append(errs, o.Observation.Validate()...)
	errs = append(errs, features.DefaultMutableFeatureGate.Validate()...)
	if o.ShutdownTimeout < 0 {
		errs = append(errs, fmt.Errorf("--controller-shutdown-timeout must not be negative, got %v", o.ShutdownTimeout))
	}
	for _, name := range o.controllers.Names {
		if controller := o.controllers.Options[name]; controller != nil {
			errs = append(errs, controller.Validate()...)
		}
	}
	return utilerrors.NewAggregate(errs)
}

// validateControllers adds what names there are to the library's saying that one is not among them.
func (o *Options) validateControllers() []error {
	for _, item := range o.Generic.Controllers {
		name := strings.TrimPrefix(item, "-")
		if _, isAlias := o.controllers.Aliases[name]; name != "*" && !isAlias && !slices.Contains(o.controllers.Names, name) {
			return []error{fmt.Errorf("--controllers knows %s", o.controllers.describe())}
		}
	}
	return nil
}

func (o *Options) validateElection() []error {
	var errs []error
	if election := o.Generic.LeaderElection; election.LeaderElect {
		// The lease carries whole seconds, and other candidates go by it.
		if election.LeaseDuration.Truncate(time.Second) <= election.RenewDeadline.Duration {
			errs = append(errs, fmt.Errorf("--leader-elect-lease-duration (%v), in whole seconds, must be longer than --leader-elect-renew-deadline (%v)",
				election.LeaseDuration.Duration, election.RenewDeadline.Duration))
		}
		if election.RetryPeriod.Duration <= 0 || election.RenewDeadline.Duration <= 2*election.RetryPeriod.Duration {
			errs = append(errs, fmt.Errorf("--leader-elect-renew-deadline (%v) must be longer than twice --leader-elect-retry-period (%v), which must be positive",
				election.RenewDeadline.Duration, election.RetryPeriod.Duration))
		}
	} else if o.Generic.LeaderMigration.Enabled {
		errs = append(errs, errors.New("--enable-leader-migration needs --leader-elect=true: two managers without leases would both run the controller"))
	}
	if o.Generic.LeaderMigration.Enabled && o.Generic.LeaderMigration.ControllerMigrationConfig == "" {
		errs = append(errs, errors.New("--enable-leader-migration needs --leader-migration-config: the library's default is about cloud providers' controllers"))
	}
	return errs
}

func (o *Options) validateKubeconfig() []error {
	var errs []error
	for _, file := range []struct{ flag, path string }{
		{"--kubeconfig", o.Generic.ClientConnection.Kubeconfig},
		{"--authentication-kubeconfig", o.Authentication.RemoteKubeConfigFile},
		{"--authorization-kubeconfig", o.Authorization.RemoteKubeConfigFile},
	} {
		if file.path == "" {
			continue
		}
		if _, err := os.Stat(file.path); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file.flag, err))
		}
	}
	return errs
}

// Config checks the options and makes a Config of them. It reaches for nothing over the network: an API server that is not
// up yet is not an error.
func (o *Options) Config() (*config.Config, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := o.SecureServing.MaybeDefaultWithSelfSignedCerts(selfSignedHost, nil, []net.IP{net.IPv4(127, 0, 0, 1)}); err != nil {
		return nil, fmt.Errorf("making a self-signed serving certificate: %w", err)
	}
	kubeconfig, err := o.kubeconfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(restclient.AddUserAgent(restclient.CopyConfig(kubeconfig), names.Manager))
	if err != nil {
		return nil, fmt.Errorf("making a client of the kubeconfig: %w", err)
	}
	c := &config.Config{
		Kubeconfig:      kubeconfig,
		Client:          client,
		Reachable:       make(chan struct{}),
		ShutdownTimeout: o.ShutdownTimeout,
	}
	if err := o.Generic.ApplyTo(&c.Generic, o.controllers.Names, o.controllers.DisabledByDefault, o.controllers.Aliases); err != nil {
		return nil, fmt.Errorf("--leader-migration-config: %w", err)
	}
	if c.Generic.LeaderMigrationEnabled && c.Generic.LeaderMigration.LeaderName == c.Generic.LeaderElection.ResourceName {
		return nil, fmt.Errorf("--leader-migration-config: leaderName must not be %q, which is this manager's own lease", c.Generic.LeaderMigration.LeaderName)
	}
	o.Observation.ApplyTo(&c.Observation)
	if err := o.applySecureServing(c); err != nil {
		return nil, err
	}
	metricsfeatures.ApplyFeatureGates(features.DefaultFeatureGate)
	// The library logs an error about the allow list that nobody asked for.
	if !apiequality.Semantic.DeepEqual(o.Metrics, metrics.NewOptions()) {
		o.Metrics.Apply()
	}
	return c, nil
}

func (o *Options) kubeconfig() (*restclient.Config, error) {
	path := o.Generic.ClientConnection.Kubeconfig
	var (
		kubeconfig *restclient.Config
		err        error
	)
	if path == "" {
		kubeconfig, err = restclient.InClusterConfig()
		if errors.Is(err, restclient.ErrNotInCluster) {
			return nil, errors.New("--kubeconfig is needed: the process does not run in a pod, so there is no service account to use")
		}
	} else {
		kubeconfig, err = clientcmd.BuildConfigFromFlags("", path)
	}
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	connection := o.Generic.ClientConnection
	kubeconfig.DisableCompression = true
	kubeconfig.AcceptContentTypes = connection.AcceptContentTypes
	kubeconfig.ContentType = connection.ContentType
	kubeconfig.QPS = connection.QPS
	kubeconfig.Burst = int(connection.Burst)
	return kubeconfig, nil
}

// describe lists the names that --controllers takes.
func (c Controllers) describe() string {
	text := fmt.Sprintf("%q", c.Names)
	if len(c.Aliases) > 0 {
		text += fmt.Sprintf(", with the aliases %q", slices.Sorted(maps.Keys(c.Aliases)))
	}
	return text
}
