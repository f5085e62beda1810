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

package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/install"
	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

const (
	// dryRunManager is the field manager of dry runs. Nothing of it is stored.
	dryRunManager = "kubectl-svm-preflight"
	// objectsPerList is how many objects are listed at a time.
	objectsPerList = 500
)

// checkFiles asks the cluster about each definition of the files. live is whether it has one of them.
func (o *Options) checkFiles(ctx context.Context, snapshot Snapshot) (found Findings, live bool, err error) {
	if len(o.Files) == 0 {
		return nil, false, nil
	}
	read, err := readManifests(o.Files, o.In)
	if err != nil {
		return nil, false, err
	}
	found.aboutManifests(read)
	role, err := o.Clients.Kube.RbacV1().ClusterRoles().Get(ctx, install.AggregatedRole, metav1.GetOptions{})
	if err != nil {
		role = nil // The command does without it, for instance because the manager has other roles.
	}
	for _, object := range read.definitions {
		change, err := o.changeOf(ctx, object, snapshot)
		if err != nil {
			return nil, false, err
		}
		change.Role, live = role, live || change.Live != nil
		found = append(found, decideChange(change)...)
	}
	return found, live, nil
}

// aboutManifests is about files without a definition.
func (fs *Findings) aboutManifests(read manifests) {
	switch {
	case len(read.definitions) > 0:
	case read.others == 0:
		fs.add(Error, CodeNoDefinitions, "", "there is not a single object in the files. If another program has written "+
			"them, look whether it failed")
	default:
		fs.add(Warning, CodeNoDefinitions, "", "the files contain no CustomResourceDefinition. Skipped %s of other "+
			"kinds", assess.FormatObjects(int64(read.others)))
	}
}

func (o *Options) changeOf(ctx context.Context, object *unstructured.Unstructured, snapshot Snapshot) (Change, error) {
	file, err := decodeDefinition(object)
	if err != nil {
		return Change{}, err
	}
	change := snapshot.change(file.Resource().String())
	change.File = &file
	var crd apiextensionsv1.CustomResourceDefinition
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &crd); err != nil {
		return Change{}, fmt.Errorf("reading CustomResourceDefinition %q: %w", object.GetName(), err)
	}
	change.Lost = documents.LostFields(&crd)
	applied, refusal, err := o.dryRun(ctx, object)
	if err != nil {
		return Change{}, err
	}
	change.Refusal = refusal
	if change.Live == nil {
		return change, ctx.Err() // There are no objects yet.
	}
	if change.Narrowed, err = o.narrowed(ctx, cmp.Or(applied, object)); err != nil {
		return Change{}, err
	}
	if change.Webhook, err = o.checkWebhook(ctx, file); err != nil {
		return Change{}, err
	}
	if len(change.unserved()) > 0 {
		change.ManagedFields, change.Uncounted = o.countManagedFields(ctx, *change.Live)
	}
	return change, ctx.Err()
}

// narrowed returns the fields that the schemas of a definition lack, and those of the current definition have.
func (o *Options) narrowed(ctx context.Context, after *unstructured.Unstructured) (map[string][]string, error) {
	definitions := documents.DefinitionsV1.WithResource("customresourcedefinitions")
	live, err := o.Clients.Dynamic.Resource(definitions).Get(ctx, after.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // It was deleted a moment ago.
	}
	var from, to apiextensionsv1.CustomResourceDefinition
	if err == nil {
		err = errors.Join(runtime.DefaultUnstructuredConverter.FromUnstructured(live.Object, &from),
			runtime.DefaultUnstructuredConverter.FromUnstructured(after.Object, &to))
	}
	if err != nil {
		return nil, fmt.Errorf("comparing CustomResourceDefinition %q: %w", after.GetName(), cli.Explain(err))
	}
	return documents.NarrowedFields(&from, &to), nil
}

// dryRun applies a definition without storing it. It returns the result, or why the API server refuses it. It applies
// on the server, so what other managers own stays, for example the certificates that cert-manager injects.
func (o *Options) dryRun(
	ctx context.Context, object *unstructured.Unstructured,
) (result *unstructured.Unstructured, refusal string, err error) {
	gvr := object.GroupVersionKind().GroupVersion().WithResource("customresourcedefinitions")
	applied := object.DeepCopy()
	unstructured.RemoveNestedField(applied.Object, "status")
	unstructured.RemoveNestedField(applied.Object, "metadata", "managedFields")
	result, err = o.Clients.Dynamic.Resource(gvr).Apply(ctx, object.GetName(), applied, metav1.ApplyOptions{
		DryRun: []string{metav1.DryRunAll}, Force: true, FieldManager: dryRunManager,
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Sprintf("it does not serve %s", gvr.GroupVersion()), nil
	case refuses(err):
		return nil, err.Error(), nil
	case err != nil:
		return nil, "", fmt.Errorf("dry run of CustomResourceDefinition %q: %w", object.GetName(), cli.Explain(err))
	}
	return result, "", nil
}

// refuses reports whether an API server refuses a definition. Admission may answer with any code of 4xx, also with that
// of the authorizer, and a webhook that fails is answered with 500.
func refuses(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code <= http.StatusInternalServerError &&
		code != http.StatusUnauthorized && code != http.StatusTooManyRequests
}

// checkWebhooks asks about the conversion webhooks of definitions with several versions, once about each Service. It
// returns an error if the API server does not answer.
func (o *Options) checkWebhooks(ctx context.Context, definitions []documents.Definition) (found Findings, err error) {
	asked := map[types.NamespacedName]Findings{}
	for _, d := range definitions {
		service := d.Spec.Conversion.Webhook.ClientConfig.Service
		if !d.ConvertedByWebhook() || service == nil || len(d.Spec.Versions) < 2 {
			continue
		}
		name, of := types.NamespacedName(*service), d.Resource().String()
		about, known := asked[name]
		if !known {
			problem, err := o.checkWebhook(ctx, d)
			switch {
			case err != nil && retry.IsUnanswered(err):
				return nil, err
			case err != nil:
				about.add(Warning, CodeConversionWebhookMissing, of, "it is not known whether the conversion webhook runs: %v", err)
			default:
				about.aboutWebhook(of, problem, "Repair the webhook")
			}
			asked[name] = about
		}
		for _, finding := range about {
			finding.Resource = of
			found = append(found, finding)
		}
	}
	return found, nil
}

// checkWebhook returns what is wrong with the conversion webhook of a definition, or nothing.
func (o *Options) checkWebhook(ctx context.Context, d documents.Definition) (problem string, err error) {
	service := d.Spec.Conversion.Webhook.ClientConfig.Service
	if !d.ConvertedByWebhook() || service == nil {
		return "", nil // If it has a URL, this machine need not be able to reach that.
	}
	name := service.Namespace + "/" + service.Name
	found, err := o.Clients.Kube.CoreV1().Services(service.Namespace).Get(ctx, service.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the conversion webhook is the Service %s, which does not exist", name), nil
	case err != nil:
		return "", fmt.Errorf("getting the Service %s of the conversion webhook: %w", name, cli.Explain(err))
	case found.Spec.Type == corev1.ServiceTypeExternalName:
		return "", nil // It has no EndpointSlices.
	}
	endpoints, err := o.Clients.Kube.DiscoveryV1().EndpointSlices(service.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service.Name,
	})
	if err != nil {
		return "", fmt.Errorf("listing the EndpointSlices of the Service %s: %w", name, cli.Explain(err))
	}
	for _, slice := range endpoints.Items {
		for _, endpoint := range slice.Endpoints {
			if ptr.Deref(endpoint.Conditions.Ready, true) {
				return "", nil
			}
		}
	}
	return fmt.Sprintf("the conversion webhook is the Service %s, which has no endpoint that is ready", name), nil
}

// countManagedFields counts the objects of a resource by the versions that their managedFields name. It lists their
// metadata. It returns why they could not be listed, or nothing: a broken conversion webhook must not hide what else
// was found.
func (o *Options) countManagedFields(
	ctx context.Context, d documents.Definition,
) (counts map[string]int64, problem string) {
	served := d.ServedVersions()
	if len(served) == 0 {
		return nil, ""
	}
	gvr := schema.GroupVersionResource{Group: d.Spec.Group, Version: served[0], Resource: d.Spec.Names.Plural}
	counts = map[string]int64{}
	options, listed := metav1.ListOptions{Limit: objectsPerList}, 0
	defer o.Overwrite("")
	for {
		list, err := o.Clients.Metadata.Resource(gvr).List(ctx, options)
		if again := (apierrors.APIStatus)(nil); apierrors.IsResourceExpired(err) && errors.As(err, &again) &&
			again.Status().ListMeta.Continue != "" {
			options.Continue = again.Status().ListMeta.Continue
			continue
		}
		if err != nil {
			return nil, cli.Explain(err).Error()
		}
		for i := range list.Items {
			for _, version := range versionsOf(list.Items[i].ManagedFields, d.Spec.Group) {
				counts[version]++
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return counts, ""
		}
		listed += len(list.Items)
		o.Overwrite(fmt.Sprintf("%d %s listed", listed, gvr.GroupResource()))
	}
}

// versionsOf returns the versions of a group that managedFields name, each once.
func versionsOf(entries []metav1.ManagedFieldsEntry, group string) []string {
	var versions []string
	for _, entry := range entries {
		version, err := schema.ParseGroupVersion(entry.APIVersion)
		if err == nil && version.Group == group && !slices.Contains(versions, version.Version) {
			versions = append(versions, version.Version)
		}
	}
	return versions
}

// checkDrops asks the cluster about each version that is to be dropped.
func (o *Options) checkDrops(ctx context.Context, snapshot Snapshot) (Findings, error) {
	var found Findings
	for _, drop := range o.drops {
		in := snapshot.change(drop.resource)
		if in.Live == nil {
			return nil, fmt.Errorf("there is no CustomResourceDefinition %s", drop.resource)
		}
		in.ManagedFields, in.Uncounted = o.countManagedFields(ctx, *in.Live)
		found = append(found, decideDrop(in, drop.version)...)
	}
	return found, ctx.Err()
}

// change returns what the snapshot says about the definition of a name.
func (s *Snapshot) change(name string) Change {
	in := Change{
		Live: s.definition(name), State: s.state(name), Manager: s.Manager, Unmanaged: s.unmanaged(), Denied: s.denied(name),
	}
	if in.State != nil {
		in.Doubt = cmp.Or(s.managerProblem(), s.doubt(in.State))
	}
	return in
}

// denied returns of how many objects the newest migration of a resource was denied the rewrite.
func (s *Snapshot) denied(name string) int64 {
	cluster := cli.Cluster{Migrations: s.Migrations}
	newest := cluster.MigrationsOf(schema.ParseGroupResource(name))
	if len(newest) == 0 || newest[0].Status.Progress == nil {
		return 0
	}
	return newest[0].Status.Progress.Denied
}

// definition returns the definition of a name, or nil.
func (s *Snapshot) definition(name string) *documents.Definition {
	for i := range s.Definitions {
		if s.Definitions[i].Resource().String() == name {
			return &s.Definitions[i]
		}
	}
	return nil
}
