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
	"errors"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-api/client/clientset/versioned/fake"
)

// TestWatchOfAnAPIServerThatFails wants no line of a log between those of a command.
func TestWatchOfAnAPIServerThatFails(t *testing.T) {
	client, asked, watches, logged := fake.NewClientset(), 0, make(chan bool, 100), make(chan string, 100)
	client.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
		asked++
		watches <- true
		return asked > 1, nil, errors.New("it is away") // Only the first one, by the command itself, is answered.
	})
	client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("it is away")
	})
	ctx := klog.NewContext(t.Context(), funcr.New(func(_, line string) { logged <- line }, funcr.Options{}))
	if _, err := (&Clients{Migration: client.MigrationV1alpha1()}).WatchMigrations(ctx, &Cluster{}); err != nil {
		t.Fatal(err)
	}
	for range 3 { // The third one comes after the second has failed.
		<-watches
	}
	if len(logged) > 0 {
		t.Errorf("the log has the line %s", <-logged)
	}
}
