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

package status

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/metadata"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-api/client/clientset/versioned/fake"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

// silent is an API server that accepts a list of metadata and then says nothing.
type silent struct{ metadata.Getter }

func (silent) Resource(schema.GroupVersionResource) metadata.Getter { return silent{} }

func (silent) List(ctx context.Context, _ metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestSilentRead wants the command to go on when the definitions, which it reads after half a minute, do not come.
func TestSilentRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		kube, looks := kubefake.NewClientset(), 0
		kube.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			looks++
			return false, nil, nil
		})
		s := state(t, "widgets.example.com", "", "MigrationQueued", "", "")
		o := &Options{NamedOptions: cli.NamedOptions{
			Env: &cli.Env{IOStreams: genericiooptions.NewTestIOStreamsDiscard(), Clock: clock.RealClock{}},
			Clients: &cli.Clients{
				Migration: fake.NewClientset(&s).MigrationV1alpha1(), Kube: kube, Discovery: kube.Discovery(), Metadata: silent{},
			},
		}}
		o.ManagerLease.Name = "svm-controller-manager"
		cluster := &cli.Cluster{Catalog: &cli.Catalog{}, States: []migrationv1alpha1.StorageState{s}}
		if err := o.watch(ctx, cluster, &Report{}); err == nil || looks < 40 {
			t.Errorf("got the error %v after %d looks", err, looks)
		}
	})
}

// undefined is an API server without definitions.
type undefined struct{ metadata.Getter }

func (undefined) Resource(schema.GroupVersionResource) metadata.Getter { return undefined{} }

func (undefined) List(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	return &metav1.PartialObjectMetadataList{}, nil
}

// TestDefinitionThatIsDeleted ends the watch as soon as nothing is left of the resource that it was about.
func TestDefinitionThatIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		streams, _, _, errOut := genericiooptions.NewTestIOStreams()
		s := state(t, "widgets.example.com", "", "MigrationQueued", "", "")
		kube, client, began := kubefake.NewClientset(), fake.NewClientset(), time.Now()
		client.PrependWatchReactor("storagestates", func(clienttesting.Action) (bool, watch.Interface, error) {
			empty := &migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{
				ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
			}}
			deleted := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 1})
			deleted.Action(watch.Bookmark, empty)
			return true, deleted, nil
		})
		o := &Options{NamedOptions: cli.NamedOptions{
			Env: &cli.Env{IOStreams: streams, Clock: clock.RealClock{}}, Names: []string{"widgets.example.com"},
			Clients: &cli.Clients{
				Migration: client.MigrationV1alpha1(), Kube: kube, Discovery: kube.Discovery(), Metadata: undefined{},
			},
		}}
		cluster := &cli.Cluster{Catalog: &cli.Catalog{}, States: []migrationv1alpha1.StorageState{s}}
		cluster.AddNamed()
		cluster.Catalog.Find(s.GroupResource()).Versions = []string{"v1"} // as it was served
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := o.watch(ctx, cluster, &Report{})
		if took := time.Since(began); err != nil || took > 10*time.Second ||
			strings.Count(errOut.String(), "widgets.example.com: its CustomResourceDefinition was deleted") != 1 {
			t.Errorf("after %v it printed %q, and the error is %v", took, errOut, err)
		}
	})
}

// TestWatchThatIsLate has a watch show a state that a manager has just confirmed, when etcd has another one. Nothing is
// known to be safe until a list shows it, too.
func TestWatchThatIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		confirmed, old := state(t, "widgets.example.com", "", "OnlyCurrentEncodingPersisted", "", ""), metav1.Time{}
		confirmed.Status.LastHeartbeatTime = metav1.Now()
		began, lateFor := time.Now(), 20*time.Second
		kube, client := kubefake.NewClientset(), fake.NewClientset(&confirmed)
		client.PrependReactor("list", "storagestates", func(clienttesting.Action) (bool, runtime.Object, error) {
			if passed := time.Since(began); passed == 0 || passed >= lateFor {
				return false, nil, nil // The first list is that of the watch.
			}
			other := *confirmed.DeepCopy()
			other.Status.LastHeartbeatTime = old
			return true, &migrationv1alpha1.StorageStateList{Items: []migrationv1alpha1.StorageState{other}}, nil
		})
		o := &Options{NamedOptions: cli.NamedOptions{
			Env: &cli.Env{IOStreams: genericiooptions.NewTestIOStreamsDiscard(), Clock: clock.RealClock{}},
			Clients: &cli.Clients{
				Migration: client.MigrationV1alpha1(), Kube: kube, Discovery: kube.Discovery(), Metadata: undefined{},
			},
		}}
		cluster := &cli.Cluster{Catalog: &cli.Catalog{}, States: []migrationv1alpha1.StorageState{confirmed}}
		err := o.watch(ctx, cluster, &Report{})
		if ended := time.Since(began); err != nil || ended < lateFor {
			t.Errorf("it ended after %v with the error %v", ended, err)
		}
	})
}
