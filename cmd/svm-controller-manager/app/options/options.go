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

// Package options turns the command line into a Config: defaults, flags, validation, and the clients and servers that
// are made from them.
package options

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/flagz"
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

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/features"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

const (
	// defaultSecurePort is next to the ports of the controller managers of Kubernetes.
	defaultSecurePort = 10262

	defaultShutdownTimeout = 10 * time.Second
)

// ControllerOptions are the flags of one controller.
type ControllerOptions interface {
	AddFlags(fs *pflag.FlagSet)
	Validate() []error
}

// Controllers is what the options need to know about the registered controllers.
type Controllers struct {
	Names             []string
	DisabledByDefault []string
	Aliases           map[string]string
	// Options holds the flags of those controllers that have any, by name.
	Options map[string]ControllerOptions
}

// Options holds the flags of the manager.
type Options struct {
	Generic        *cmoptions.GenericControllerManagerConfigurationOptions
	SecureServing  *apiserveroptions.SecureServingOptions
	Authentication *apiserveroptions.DelegatingAuthenticationOptions
	Authorization  *apiserveroptions.DelegatingAuthorizationOptions
	Metrics        *metrics.Options
	Logs           *logs.Options
	Observation    Observation

	ShutdownTimeout time.Duration

	controllers Controllers
}

// Config is everything that Run needs.
type Config struct {
	// Generic is what every controller manager of Kubernetes has: the controllers to run, leader election, and settings
	// of clients.
	Generic cmconfig.GenericControllerManagerConfiguration

	// SecureServing is nil if the secure port is off.
	SecureServing  *apiserver.SecureServingInfo
	Authentication apiserver.AuthenticationInfo
	Authorization  apiserver.AuthorizationInfo

	// Kubeconfig is what the configurations of all clients are copied from.
	Kubeconfig *restclient.Config
	// Client is for the manager itself: for leader election, for events, and to see whether the API server answers.
	Client kubernetes.Interface

	// Reachable is closed once the API server has answered.
	Reachable chan struct{}

	Observation Observation

	// ShutdownTimeout is how long the manager waits for controllers to end. Zero is for ever.
	ShutdownTimeout time.Duration

	// Flags is what the flagz page shows.
	Flags flagz.Reader
}

// New returns options with defaults.
func New(controllers Controllers) *Options {
	generic := cmconfigv1alpha1.GenericControllerManagerConfiguration{}
	cmconfigv1alpha1.RecommendedDefaultGenericControllerManagerConfiguration(&generic)
	internal := cmconfig.GenericControllerManagerConfiguration{}
	convert := cmconfigv1alpha1.
		Convert_v1alpha1_GenericControllerManagerConfiguration_To_config_GenericControllerManagerConfiguration
	utilruntime.Must(convert(&generic, &internal, nil)) // The library converts a value of its own.
	internal.LeaderElection.ResourceName = names.Manager
	internal.LeaderElection.ResourceNamespace = metav1.NamespaceSystem
	// Each client picks the best encoding of its API. One encoding for all would break clients of custom resources, which
	// have JSON only.
	internal.ClientConnection.ContentType = ""

	o := &Options{
		Generic:         cmoptions.NewGenericControllerManagerConfigurationOptions(&internal),
		SecureServing:   apiserveroptions.NewSecureServingOptions(),
		Authentication:  apiserveroptions.NewDelegatingAuthenticationOptions(),
		Authorization:   apiserveroptions.NewDelegatingAuthorizationOptions(),
		Metrics:         metrics.NewOptions(),
		Logs:            logs.NewOptions(),
		Observation:     defaultObservation(),
		ShutdownTimeout: defaultShutdownTimeout,
		controllers:     controllers,
	}
	o.Generic.LeaderMigration = nil // kube-controller-manager ends when it holds a lease of leader migration.
	o.Authentication.RemoteKubeConfigFileOptional = true
	o.Authorization.RemoteKubeConfigFileOptional = true
	// Without a directory a self-signed certificate stays in memory. The file system of a static pod is read-only.
	o.SecureServing.ServerCert.CertDirectory = ""
	o.SecureServing.ServerCert.PairName = names.Manager
	o.SecureServing.BindPort = defaultSecurePort
	return o
}

// Flags returns all flags in named groups.
func (o *Options) Flags() *cliflag.NamedFlagSets {
	fss := &cliflag.NamedFlagSets{}
	o.Generic.AddFlags(fss, o.controllers.Names, o.controllers.DisabledByDefault, o.controllers.Aliases)
	generic := fss.FlagSet("generic")
	generic.Lookup("controllers").Usage += fmt.Sprintf("\nAliases: %s",
		strings.Join(slices.Sorted(maps.Keys(o.controllers.Aliases)), ", "))
	generic.StringVar(&o.Generic.ClientConnection.Kubeconfig, "kubeconfig", o.Generic.ClientConnection.Kubeconfig,
		"Path to the kubeconfig file with the address and the credentials of the API server. "+
			"Without it the manager uses the service account of its pod.")
	generic.DurationVar(&o.ShutdownTimeout, "controller-shutdown-timeout", o.ShutdownTimeout,
		"How long the manager waits for controllers to end before the process exits and leaves its lease to expire. "+
			"Zero waits for ever.")
	addObservationFlags(fss.FlagSet("observation"), &o.Observation)
	for _, name := range slices.Sorted(maps.Keys(o.controllers.Options)) {
		o.controllers.Options[name].AddFlags(fss.FlagSet(name))
	}
	o.SecureServing.AddFlags(fss.FlagSet("secure serving"))
	o.Authentication.AddFlags(fss.FlagSet("authentication"))
	o.Authorization.AddFlags(fss.FlagSet("authorization"))
	o.Metrics.AddFlags(fss.FlagSet("metrics"))
	logsapi.AddFlags(o.Logs, fss.FlagSet("logs"))
	features.DefaultMutableFeatureGate.AddFlag(fss.FlagSet("feature gates"))
	global := fss.FlagSet("global")
	global.Bool("version", false, "Print the version and quit.")
	globalflag.AddGlobalFlags(global, names.Manager, logs.SkipLoggingConfigurationFlags())
	describeLibraryFlags(fss)
	return fss
}

// describeLibraryFlags corrects the help of flags that work differently here than the library says.
func describeLibraryFlags(fss *cliflag.NamedFlagSets) {
	fss.FlagSet("generic").Lookup("kube-api-content-type").Usage =
		"Content type of requests sent to the API server: application/json or application/vnd.kubernetes.protobuf. " +
			"If it is empty, each client chooses."
	fss.FlagSet("generic").Lookup("kube-api-qps").Usage =
		"How many requests each client may send to the API server in a second. Negative means no limit."
	fss.FlagSet("generic").Lookup("controller-start-interval").Usage =
		"Each controller starts a random time of one to two intervals after the process became leader."
	authentication := fss.FlagSet("authentication")
	authentication.Lookup("authentication-kubeconfig").Usage =
		"Path to the kubeconfig file of the API server that reviews tokens and has the client CA of the cluster. " +
			"Without it the manager uses --kubeconfig, or the service account of its pod."
	authentication.Lookup("authentication-skip-lookup").Usage =
		"If true, the manager does not look up the client CA of the cluster, and accepts client certificates only " +
			"if --client-ca-file is given."
	// Nothing is looked up while the port opens, so there is no failure to tolerate. See applySecureServing.
	authentication.Lookup("authentication-tolerate-lookup-failure").Hidden = true
	fss.FlagSet("authorization").Lookup("authorization-kubeconfig").Usage =
		"Path to the kubeconfig file of the API server that reviews access. " +
			"Without it the manager uses --kubeconfig, or the service account of its pod."
}

// Validate returns everything that is wrong with the flags.
func (o *Options) Validate() error {
	errs := slices.Concat(
		o.Generic.Validate(o.controllers.Names, o.controllers.DisabledByDefault, o.controllers.Aliases),
		o.validateControllers(),
		o.validateElection(),
		o.validateConnection(),
		o.validatePort(),
		o.Authentication.Validate(),
		o.Authorization.Validate(),
		o.validateServing(),
		nameFlags(o.Metrics.Validate()),
		validateObservation(o.Observation),
		features.DefaultMutableFeatureGate.Validate(),
	)
	for _, duration := range []struct {
		flag  string
		value time.Duration
	}{
		{"controller-shutdown-timeout", o.ShutdownTimeout},
		{"controller-start-interval", o.Generic.ControllerStartInterval.Duration},
		{"min-resync-period", o.Generic.MinResyncPeriod.Duration}, // Informers would resync without a pause.
		{"authentication-token-webhook-cache-ttl", o.Authentication.CacheTTL},
		{"authorization-webhook-cache-authorized-ttl", o.Authorization.AllowCacheTTL},
		{"authorization-webhook-cache-unauthorized-ttl", o.Authorization.DenyCacheTTL},
	} {
		if duration.value < 0 {
			errs = append(errs, fmt.Errorf("--%s must not be negative, got %v", duration.flag, duration.value))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.controllers.Options)) {
		errs = append(errs, o.controllers.Options[name].Validate()...)
	}
	return utilerrors.NewAggregate(errs)
}

// validateControllers lists the known names after a wrong one. The library says only that a name is wrong. It also
// refuses a list that only leaves something out, because such a list selects nothing.
func (o *Options) validateControllers() []error {
	aliases := slices.Sorted(maps.Keys(o.controllers.Aliases))
	for _, item := range o.Generic.Controllers {
		name := strings.TrimPrefix(item, "-")
		if item != "*" && !slices.Contains(o.controllers.Names, name) && !slices.Contains(aliases, name) {
			return []error{fmt.Errorf("--controllers: the known controllers are %q, with the aliases %q",
				o.controllers.Names, aliases)}
		}
	}
	selects := func(item string) bool { return !strings.HasPrefix(item, "-") }
	if list := o.Generic.Controllers; len(list) > 0 && !slices.ContainsFunc(list, selects) {
		return []error{fmt.Errorf("--controllers: %q leaves no controller: write %q to run all others",
			strings.Join(list, ","), "*,"+strings.Join(list, ","))}
	}
	return nil
}

// validateConnection checks what clients need. A client would name no flag.
func (o *Options) validateConnection() []error {
	var errs []error
	connection := o.Generic.ClientConnection
	types := []string{"", runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} // Clients cannot watch with any other.
	if !slices.Contains(types, connection.ContentType) {
		errs = append(errs, fmt.Errorf("--kube-api-content-type must be one of %q, got %q", types, connection.ContentType))
	}
	if math.IsNaN(float64(connection.QPS)) || connection.QPS == 0 { // A client takes 0 for 5 requests a second.
		errs = append(errs, errors.New("--kube-api-qps must be a positive number, or negative for no limit"))
	}
	if connection.QPS > 0 && connection.Burst <= 0 {
		errs = append(errs, fmt.Errorf("--kube-api-burst must be positive while --kube-api-qps is, got %d", connection.Burst))
	}
	return errs
}

// Config checks the options and makes a Config of them. It sends nothing over the network, so it does not matter
// whether the API server is up.
func (o *Options) Config() (*Config, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	loopback := []net.IP{net.IPv4(127, 0, 0, 1)}
	if err := o.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, loopback); err != nil {
		return nil, fmt.Errorf("--cert-dir: making a self-signed serving certificate: %w", err)
	}
	connection := o.Generic.ClientConnection
	kubeconfig, err := loadKubeconfig("--kubeconfig", connection.Kubeconfig)
	if err != nil {
		return nil, err
	}
	controller.RefuseRedirects(kubeconfig)
	documents.BoundAnswers(kubeconfig)
	kubeconfig.DisableCompression = true
	kubeconfig.AcceptContentTypes, kubeconfig.ContentType = connection.AcceptContentTypes, connection.ContentType
	kubeconfig.QPS, kubeconfig.Burst = connection.QPS, int(connection.Burst)
	client, err := kubernetes.NewForConfig(restclient.AddUserAgent(restclient.CopyConfig(kubeconfig), names.Manager))
	if err != nil {
		return nil, fmt.Errorf("making a client of the kubeconfig: %w", err)
	}
	c := &Config{
		Kubeconfig:      kubeconfig,
		Client:          client,
		Reachable:       make(chan struct{}),
		Observation:     o.Observation,
		ShutdownTimeout: o.ShutdownTimeout,
	}
	err = o.Generic.ApplyTo(&c.Generic, o.controllers.Names, o.controllers.DisabledByDefault, o.controllers.Aliases)
	if err != nil {
		return nil, err
	}
	if err := o.applySecureServing(c); err != nil {
		return nil, err
	}
	metricsfeatures.ApplyFeatureGates(features.DefaultFeatureGate)
	// With its defaults the library logs an error about an allow list that nobody asked for.
	if !apiequality.Semantic.DeepEqual(o.Metrics, metrics.NewOptions()) {
		o.Metrics.Apply()
	}
	return c, nil
}

// loadKubeconfig reads the file, or uses the service account of the pod if path is empty.
func loadKubeconfig(flag, path string) (kubeconfig *restclient.Config, err error) {
	if path == "" {
		kubeconfig, err = restclient.InClusterConfig()
	} else {
		kubeconfig, err = clientcmd.BuildConfigFromFlags("", path)
	}
	switch {
	case errors.Is(err, restclient.ErrNotInCluster):
		return nil, fmt.Errorf("%s is needed: the process does not run in a pod, so it has no service account", flag)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return kubeconfig, nil
}
