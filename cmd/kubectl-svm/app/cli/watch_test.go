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
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"sigs.k8s.io/svm-api/client/clientset/versioned/fake"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
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

// TestAPIServerThatIsAway has one that fails to answer once after a long look, and then for fifteen seconds. The person
// is told once that what is shown is old, and once that it is not any more. Meanwhile the command does not look.
func TestAPIServerThatIsAway(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client, asked, looks := fake.NewClientset(), 0, 0
	client.PrependReactor("list", "storageversionmigrations", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		if asked > 25 {
			cancel()
		}
		away := asked == 2 || asked > 4 && asked < 20
		return away, nil, errors.New("connection refused")
	})
	fakeClock := clocktesting.NewFakeClock(time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC))
	go func() {
		for ctx.Err() == nil {
			if fakeClock.HasWaiters() {
				fakeClock.Step(time.Second)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	streams, _, _, errOut := genericiooptions.NewTestIOStreams()
	o := &NamedOptions{
		Env: &Env{IOStreams: streams, Clock: fakeClock}, Clients: &Clients{Migration: client.MigrationV1alpha1()},
	}
	err := o.Follow(ctx, func() (bool, error) {
		if looks++; looks == 1 {
			fakeClock.Step(2 * unreadAfter)
		}
		return false, nil
	})
	if lost := 11; !errors.Is(err, context.Canceled) || looks != asked-lost {
		t.Errorf("got the error %v, and %d looks, want %d", err, looks, asked-lost)
	}
	if since := UnreadSince(err); since != "" {
		t.Errorf("it can be read again at the end, and it is said that %s", since)
	}
	for _, want := range []string{
		"12:00:19 The API server cannot be read since 12:00:14, and what is shown is of that time.",
		"12:00:30 The API server can be read again.",
	} {
		if strings.Count(errOut.String(), want) != 1 {
			t.Errorf("got\n%s\nwant once: %s", errOut, want)
		}
	}
	if n := strings.Count(errOut.String(), "The API server"); n != 2 {
		t.Errorf("it is said %d times:\n%s", n, errOut)
	}
}

// TestCredentialsThatExpire has an API server refuse the credentials for half a minute, and later for good.
func TestCredentialsThatExpire(t *testing.T) {
	for _, refusal := range []error{
		apierrors.NewUnauthorized("the token has expired"),
		apierrors.NewForbidden(migrationv1alpha1.Resource("storageversionmigrations"), "", errors.New("no role")),
	} {
		synctest.Test(t, func(t *testing.T) {
			client, began := fake.NewClientset(), time.Now()
			client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				passed := time.Since(began)
				return passed > 10*time.Second && passed < 40*time.Second || passed > 2*time.Minute, nil, refusal
			})
			o := &NamedOptions{
				Env:     &Env{IOStreams: genericiooptions.NewTestIOStreamsDiscard(), Clock: clock.RealClock{}},
				Clients: &Clients{Migration: client.MigrationV1alpha1()},
			}
			err := o.Follow(t.Context(), func() (bool, error) { return false, nil })
			if took := time.Since(began) - 3*time.Minute; took < 0 || took > 2*time.Second || !errors.Is(err, refusal) ||
				err.Error() != Explain(refusal).Error() || UnreadSince(err) == "" {
				t.Errorf("%v after three minutes it ends with the error %v", took, err)
			}
		})
	}
}
