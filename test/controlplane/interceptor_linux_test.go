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

package controlplane

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// spoiled is a config map that is patched through an interceptor.
type spoiled struct {
	cp          *ControlPlane
	interceptor *Interceptor
	through     *kubernetes.Clientset
	number      int
}

func testWhatAnInterceptorDoes(t *testing.T, cp *ControlPlane) {
	interceptor, err := cp.NewInterceptor("", nil)
	must(t, err)
	s := &spoiled{cp: cp, interceptor: interceptor, through: clientFor(t, interceptor.Config("alice", adminGroup))}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "spoiled"}}
	_, err = s.through.CoreV1().ConfigMaps("default").Create(t.Context(), object, metav1.CreateOptions{})
	must(t, err)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *spoiled)
	}{
		{"clients are who their certificates say", checkVouching},
		{"clients are who their tokens say", checkToken},
		{"a request is late", checkDelay},
		{"a client that is told to retry later does", checkRetryAfter},
		{"a request is answered in the server's place", checkStatus},
		{"a request is cut before it reaches the server", checkCutBefore},
		{"a request is cut after the server acted", checkCutAfter},
		{"a request is cut with its connection", checkCutConnection},
		{"all connections are cut", checkCutConnections},
		{"a server that is gone leaves clients without an answer", checkGone},
	} {
		t.Run(step.name, func(t *testing.T) {
			interceptor.Intercept(nil)
			step.run(t, s)
		})
	}
}

// patch patches the object with a value that it did not have.
func (s *spoiled) patch(ctx context.Context) error {
	s.number++
	return s.send(ctx)
}

func (s *spoiled) send(ctx context.Context) error {
	objects := s.through.CoreV1().ConfigMaps("default")
	_, err := objects.Patch(ctx, "spoiled", types.MergePatchType, s.body(), metav1.PatchOptions{})
	return err
}

func (s *spoiled) body() []byte {
	return []byte(`{"data":{"number":"` + strings.Repeat("i", s.number) + `"}}`)
}

// done tells whether the last patch was applied, from the server itself.
func (s *spoiled) done(t *testing.T) bool {
	t.Helper()
	objects := clientFor(t, s.cp.AdminConfig()).CoreV1().ConfigMaps("default")
	object, err := objects.Get(t.Context(), "spoiled", metav1.GetOptions{})
	must(t, err)
	return len(object.Data["number"]) == s.number
}

// spoil gives the verdict on patches.
func (s *spoiled) spoil(v Verdict) {
	s.interceptor.Intercept(func(r *http.Request) Verdict {
		if r.Method != http.MethodPatch || r.URL.Path != "/api/v1/namespaces/default/configmaps/spoiled" {
			return Verdict{}
		}
		return v
	})
}

// watch watches the object through the interceptor, and returns when the first event has come.
func (s *spoiled) watch(t *testing.T) watch.Interface {
	t.Helper()
	w, err := s.through.CoreV1().ConfigMaps("default").
		Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=spoiled"})
	must(t, err)
	t.Cleanup(w.Stop)
	if !received(w) {
		t.Fatal("no event comes through")
	}
	return w
}

// received waits for one event, or the end of the watch.
func received(w watch.Interface) bool {
	select {
	case _, open := <-w.ResultChan():
		return open
	case <-time.After(testTimeout):
		return false
	}
}

// ends waits for the end of a watch.
func ends(w watch.Interface) bool {
	deadline := time.After(testTimeout)
	for {
		select {
		case _, open := <-w.ResultChan():
			if !open {
				return true
			}
		case <-deadline:
			return false
		}
	}
}

func checkVouching(t *testing.T, s *spoiled) {
	user := whoAmI(t, s.interceptor.Config("bob", "developers"))
	expectUser(t, user, "bob", "developers", "system:authenticated")
	forged := s.interceptor.Config("bob")
	forged.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.Header.Set(userHeader, adminUser)
			r.Header.Set(groupHeader, adminGroup)
			return next.RoundTrip(r)
		})
	}
	if user := whoAmI(t, forged); user.Username != "bob" || len(user.Groups) != 1 {
		t.Errorf("a client that says that it is somebody else is believed to be %v", user)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func checkToken(t *testing.T, s *spoiled) {
	accounts := clientFor(t, s.cp.AdminConfig()).CoreV1().ServiceAccounts("default")
	robot := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}
	_, err := accounts.Create(t.Context(), robot, metav1.CreateOptions{})
	must(t, err)
	token, err := accounts.CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	config := rest.AnonymousClientConfig(s.interceptor.Config("nobody"))
	config.BearerToken = token.Status.Token
	if user := whoAmI(t, config); user.Username != "system:serviceaccount:default:robot" {
		t.Errorf("the token is that of %v", user)
	}
}

func checkDelay(t *testing.T, s *spoiled) {
	const delay = 300 * time.Millisecond
	s.spoil(Verdict{Delay: delay})
	began := time.Now()
	must(t, s.patch(t.Context()))
	if took := time.Since(began); took < delay || !s.done(t) {
		t.Errorf("it took %v", took)
	}
	s.spoil(Verdict{Delay: testTimeout})
	ctx, cancel := context.WithTimeout(t.Context(), delay)
	defer cancel()
	if err := s.patch(ctx); err == nil || s.done(t) {
		t.Errorf("a client that did not wait: %v", err)
	}
}

func checkRetryAfter(t *testing.T, s *spoiled) {
	var asked atomic.Int32
	s.interceptor.Intercept(func(*http.Request) Verdict {
		if asked.Add(1) == 1 {
			return TooManyRequests("1")
		}
		return Verdict{}
	})
	began := time.Now()
	must(t, s.patch(t.Context())) // client-go heeds it by itself
	if took := time.Since(began); asked.Load() != 2 || took < time.Second || !s.done(t) {
		t.Errorf("%d requests in %v", asked.Load(), took)
	}
}

func checkStatus(t *testing.T, s *spoiled) {
	s.spoil(Verdict{Status: http.StatusServiceUnavailable})
	if err := s.patch(t.Context()); !apierrors.IsServiceUnavailable(err) || s.done(t) {
		t.Errorf("the patch was answered with %v", err)
	}
	s.spoil(Verdict{
		Status: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}},
		Body: `{"kind":"Status","apiVersion":"v1","status":"Failure",` +
			`"reason":"Forbidden","message":"out for lunch","code":403}`,
	})
	if err := s.patch(t.Context()); !apierrors.IsForbidden(err) || err.Error() != "out for lunch" || s.done(t) {
		t.Errorf("the patch was answered with %v", err)
	}
	_, err := s.through.CoreV1().ConfigMaps("default").Get(t.Context(), "spoiled", metav1.GetOptions{})
	must(t, err)
}

func checkCutBefore(t *testing.T, s *spoiled) {
	w := s.watch(t)
	s.spoil(Verdict{Cut: CutBefore})
	err := s.patch(t.Context())
	if err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown || s.done(t) {
		t.Errorf("the patch was answered with %v", err)
	}
	s.interceptor.Intercept(nil)
	must(t, s.patch(t.Context()))
	if !received(w) {
		t.Error("a watch ended with another request")
	}
}

func checkCutAfter(t *testing.T, s *spoiled) {
	w := s.watch(t)
	s.spoil(Verdict{Cut: CutAfter})
	if err := s.patch(t.Context()); err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		t.Errorf("the patch was answered with %v", err)
	}
	if !s.done(t) {
		t.Error("the patch did not reach the server")
	}
	if !received(w) {
		t.Error("a watch ended with another request")
	}
}

func checkCutConnection(t *testing.T, s *spoiled) {
	w := s.watch(t)
	s.spoil(Verdict{Cut: CutAfter, Connection: true})
	if err := s.patch(t.Context()); err == nil || !s.done(t) {
		t.Errorf("the patch was answered with %v", err)
	}
	if !ends(w) {
		t.Error("a watch outlives its connection")
	}
	s.interceptor.Intercept(nil)
	must(t, s.patch(t.Context()))
}

func checkCutConnections(t *testing.T, s *spoiled) {
	w := s.watch(t)
	s.interceptor.CutConnections()
	if !ends(w) {
		t.Error("a watch outlives its connection")
	}
	must(t, s.patch(t.Context()))
}

func checkGone(t *testing.T, s *spoiled) {
	server := s.cp.Servers()[0]
	must(t, server.Kill())
	if err := s.patch(t.Context()); err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		t.Errorf("the patch was answered with %v", err)
	}
	must(t, server.Restart(nil))
	must(t, s.patch(t.Context()))
	if !s.done(t) {
		t.Error("the patch did not reach the server that came back")
	}
}
