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

package assess

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
)

func TestWhatHappensNext(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: now.Add(d)} }
	type migration = migrationv1alpha1.StorageVersionMigration
	type state = migrationv1alpha1.StorageState
	in := func(condition migrationv1alpha1.MigrationConditionType, reason string) *migration {
		m := &migration{ObjectMeta: metav1.ObjectMeta{Name: "widgets-1"}}
		m.Status.Conditions = []migrationv1alpha1.MigrationCondition{
			{Type: condition, Status: "True", Reason: reason, Message: "Look at it."},
		}
		return m
	}
	denied := in(migrationv1alpha1.MigrationFailed, "ObjectsDenied")
	denied.Status.Progress = &migrationv1alpha1.MigrationProgress{Denied: 1200}
	forbidden := in(migrationv1alpha1.MigrationFailed, "RewritesRefused")
	forbidden.Status.Conditions[0].Message = rewrite.PermissionRemedy
	forbidden.Status.Progress = &migrationv1alpha1.MigrationProgress{Denied: 5}
	ending := in(migrationv1alpha1.MigrationRunning, "Rewriting")
	ending.Status.EstimatedCompletionTime = at(3 * time.Minute)
	backoff := func(next *metav1.Time) func(*state) {
		return func(s *state) { s.Status.Backoff = &migrationv1alpha1.MigrationBackoff{NextAttemptTime: next} }
	}
	for _, test := range []struct {
		name      string
		reason    string
		disagreed string // the reason of Agreed; none means that it is True
		migration *migration
		change    func(*state)
		attention Attention
		want      string
		next      string
		command   string
	}{
		{"nobody serves it", "NotServed", "NotServed", nil, nil, Act, "NotServed", "no server serves it", ""},
		{"not pruned", "StoredVersionsNotPruned", "", nil, nil, Act, "StoredVersionsNotPruned",
			"storedVersions is not pruned", "kubectl svm migrate widgets"},
		{"a server is away", "AwaitingAgreement", "ServersUnseen", nil, nil, Act, "ServersUnseen",
			"a server does not answer", ""},
		{"a read fails", "AwaitingAgreement", "DiscoveryFailed", nil, nil, Act, "DiscoveryFailed",
			"the manager cannot read what it needs", ""},
		{"during an upgrade", "AwaitingAgreement", "ServersDisagree", nil, nil, Wait, "ServersDisagree",
			"waits until the servers agree", ""},
		{"agreement without a migration", "AwaitingAgreement", "", nil, nil, Wait, "AwaitingAgreement",
			"the trigger updates the StorageState", ""},
		{"running", "MigrationRunning", "", ending, nil, Wait, "MigrationRunning", "the migration ends in 3m", ""},
		{"stuck", "MigrationRunning", "", in(migrationv1alpha1.MigrationRunning, "NoProgress"), nil, Act,
			"MigrationRunning", "the migration makes no progress", ""},
		{"has ended a moment ago", "MigrationRunning", "", nil, nil, Wait, "MigrationRunning",
			"the trigger updates the StorageState", ""},
		{"has failed a moment ago", "MigrationRunning", "", denied, nil, Wait, "MigrationRunning",
			"the trigger updates the StorageState", ""},
		{"due again after a failure", "MigrationQueued", "", denied, nil, Wait, "MigrationQueued",
			"the trigger creates a migration", ""},
		{"waits for space", "MigrationQueued", "", in(migrationv1alpha1.MigrationWaiting, "AwaitingStorageSpace"), nil, Wait,
			"MigrationQueued", "the migration waits: AwaitingStorageSpace", ""},
		{"nobody has seen the migration", "MigrationQueued", "", &migration{}, nil, Wait, "MigrationQueued",
			"waits for the migrator", ""},
		{"events", "ObjectsExpire", "", nil, nil, Wait, "ObjectsExpire", "done when old objects have expired", ""},
		{"denied", "MigrationFailed", "", denied, backoff(at(time.Hour)), Act, "MigrationFailed",
			"1,200 objects denied; tried again in 60m", "kubectl svm denied widgets"},
		{"failed for good", "MigrationFailed", "", in(migrationv1alpha1.MigrationFailed, "ListRefused"), backoff(nil), Act,
			"MigrationFailed", "not tried again by itself", "kubectl svm retry widgets"},
		{"failed for a permission that no command gives", "MigrationFailed", "", forbidden, backoff(nil), Act,
			"MigrationFailed", "5 objects denied; not tried again by itself", "kubectl svm denied widgets"},
		{"failed and paused", "MigrationFailed", "", denied, func(s *state) { s.Spec.Paused = true }, Act,
			"MigrationFailed", "1,200 objects denied; paused by a person",
			"kubectl svm denied widgets; kubectl svm resume widgets"},
		{"paused after a failure", "Paused", "", denied, func(s *state) { s.Spec.Paused = true }, Act, "Paused",
			"1,200 objects denied; paused by a person",
			"kubectl svm denied widgets; kubectl svm resume widgets"},
		{"left out after a failure", "NotSelectedForMigration", "", denied, backoff(at(time.Hour)), Act,
			"NotSelectedForMigration", "1,200 objects denied; --auto-migrate leaves it out", "kubectl svm denied widgets"},
		{"paused by annotation before the servers agree", "AwaitingAgreement", "Settling", nil, func(s *state) {
			s.Annotations = map[string]string{migrationv1alpha1.PausedAnnotation: "yes, please"}
		}, Act, "Settling", "paused by a person", "kubectl svm resume widgets"},
		{"paused, and a migration goes on", "MigrationRunning", "", ending, func(s *state) { s.Spec.Paused = true }, Wait,
			"MigrationRunning", "the migration ends in 3m", ""},
		{"paused, and not served", "NotServed", "", nil, func(s *state) { s.Spec.Paused = true }, Act, "NotServed",
			"no server serves it", ""},
		{"paused, and done but for storedVersions", "StoredVersionsNotPruned", "", nil,
			func(s *state) { s.Spec.Paused = true }, Act, "StoredVersionsNotPruned", "storedVersions is not pruned",
			"kubectl svm migrate widgets"},
		{"a state of another controller", "", "", nil, func(s *state) { s.Status.Epoch = 0 }, Wait, ReasonNotObserved,
			"the trigger records it", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := state{ObjectMeta: metav1.ObjectMeta{Name: "widgets"}}
			s.Spec.Resource.Resource, s.Status.Epoch = "widgets", 1
			s.Status.Conditions = []metav1.Condition{
				{Type: "Agreed", Status: "True"},
				{Type: "SafeToRemoveOldVersions", Status: "False", Reason: test.reason},
			}
			if test.disagreed != "" {
				s.Status.Conditions[0] = metav1.Condition{Type: "Agreed", Status: "False", Reason: test.disagreed}
			}
			if test.change != nil {
				test.change(&s)
			}
			cluster := &cli.Cluster{States: []state{s}}
			if test.migration != nil {
				m := *test.migration.DeepCopy()
				m.Spec.Resource.Resource = "widgets"
				cluster.Migrations = []migration{m}
			}
			r := Resources(cluster, []schema.GroupResource{{Resource: "widgets"}}, Manager{}, now)[0]
			command := typed(strings.Join(Commands([]*Resource{&r}, nil), "; "))
			if r.Safe || r.Attention != test.attention || r.Reason != test.want || r.Next != test.next ||
				command != test.command {
				t.Errorf("got %s, %s, %q, %q, want %s, %s, %q, %q", r.Attention, r.Reason, r.Next, command,
					test.attention, test.want, test.next, test.command)
			}
		})
	}
}

// TestFailureBeforeASuccess does not matter any more, unless the trigger still waits because of it.
func TestFailureBeforeASuccess(t *testing.T) {
	widgets := schema.GroupResource{Resource: "widgets"}
	ended := func(name string, minute int, with migrationv1alpha1.MigrationConditionType) (
		m migrationv1alpha1.StorageVersionMigration,
	) {
		m.Name, m.UID = name, types.UID(name)
		m.CreationTimestamp = metav1.Date(2030, 1, 1, 12, minute, 0, 0, time.UTC)
		m.Spec.Resource.Resource = "widgets"
		m.Status.Conditions = []migrationv1alpha1.MigrationCondition{{Type: with, Status: "True"}}
		return m
	}
	all := newIndex(&cli.Cluster{Migrations: []migrationv1alpha1.StorageVersionMigration{
		ended("failed", 1, migrationv1alpha1.MigrationFailed), ended("succeeded", 2, migrationv1alpha1.MigrationSucceeded),
	}})
	state := &migrationv1alpha1.StorageState{}
	if m := latest(all, widgets, state); m != nil {
		t.Errorf("the migration that matters is %s", m.Name)
	}
	state.Status.Backoff = &migrationv1alpha1.MigrationBackoff{
		LastFailedMigration: &migrationv1alpha1.MigrationReference{Name: "failed", UID: "failed"},
	}
	if m := latest(all, widgets, state); m == nil || m.Name != "failed" {
		t.Errorf("the trigger waits because of a failure, and the migration that matters is %v", m)
	}
}

// TestMissingPermissionOfACustomResource names the command that gives the permission, and not the denied objects.
func TestMissingPermissionOfACustomResource(t *testing.T) {
	name := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	var failed migrationv1alpha1.StorageVersionMigration
	failed.Spec.Resource.Group, failed.Spec.Resource.Resource = name.Group, name.Resource
	failed.Status.Conditions = []migrationv1alpha1.MigrationCondition{
		{Type: migrationv1alpha1.MigrationFailed, Status: "True", Message: rewrite.PermissionRemedy},
	}
	failed.Status.Progress = &migrationv1alpha1.MigrationProgress{Denied: 5}
	for reason, verb := range map[string]string{
		migrationv1alpha1.StateReasonMigrationFailed: "retry", migrationv1alpha1.StateReasonNotSelected: "migrate",
	} {
		s := migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: name.String()}}
		s.Spec.Resource = migrationv1alpha1.GroupResource{Group: name.Group, Resource: name.Resource}
		s.Status.Epoch = 1
		s.Status.Conditions = []metav1.Condition{
			{Type: "Agreed", Status: "True"}, {Type: "SafeToRemoveOldVersions", Status: "False", Reason: reason},
		}
		cluster := &cli.Cluster{
			States: []migrationv1alpha1.StorageState{s}, Migrations: []migrationv1alpha1.StorageVersionMigration{failed},
		}
		r := Resources(cluster, []schema.GroupResource{name}, Manager{}, time.Now())[0]
		got := typed(strings.Join(Commands([]*Resource{&r}, nil), "; "))
		if want := "kubectl svm rbac | kubectl apply -f -; kubectl svm " + verb + " widgets.example.com"; got != want {
			t.Errorf("%s: got %q, want %q", reason, got, want)
		}
	}
}

// TestMigrationThatFinalizersKeep matters only if the next one needs its name.
func TestMigrationThatFinalizersKeep(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	var kept migrationv1alpha1.StorageVersionMigration
	kept.Name, kept.UID, kept.DeletionTimestamp = "kept", "kept", &metav1.Time{Time: now}
	kept.Spec.Resource.Resource = "widgets"
	kept.Status.Conditions = []migrationv1alpha1.MigrationCondition{
		{Type: migrationv1alpha1.MigrationRunning, Status: "True"},
	}
	for attempt, want := range map[types.UID]Attention{"kept": Act, "another": Wait} {
		s := migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: "widgets"}}
		s.Spec.Resource.Resource, s.Status.Epoch = "widgets", 1
		s.Status.Migration = &migrationv1alpha1.MigrationReference{UID: attempt}
		s.Status.Conditions = []metav1.Condition{
			{Type: "Agreed", Status: "True"},
			{Type: "Migrated", Status: "False", Reason: migrationv1alpha1.StateReasonMigrationQueued},
			{Type: "SafeToRemoveOldVersions", Status: "False", Reason: migrationv1alpha1.StateReasonMigrationQueued},
		}
		cluster := &cli.Cluster{
			States: []migrationv1alpha1.StorageState{s}, Migrations: []migrationv1alpha1.StorageVersionMigration{kept},
		}
		assessed := func() Resource {
			return Resources(cluster, []schema.GroupResource{{Resource: "widgets"}}, Manager{}, now)[0]
		}
		if r := assessed(); r.Attention != want || r.Migration.Progress(now) != "" {
			t.Errorf("the attempt is %s: %s, %q, %q", attempt, r.Attention, r.Next, r.Migration.Progress(now))
		}
		cluster.States[0].Spec.Paused = true
		if r := assessed(); r.Verb != "resume" {
			t.Errorf("the attempt is %s, and paused: %q, %q", attempt, r.Next, r.Verb)
		}
		cluster.States[0].Spec.Paused = false
		failed := migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "failed"}, Spec: kept.Spec}
		failed.Status.Conditions = []migrationv1alpha1.MigrationCondition{
			{Type: migrationv1alpha1.MigrationFailed, Status: "True"},
		}
		cluster.Migrations = append(cluster.Migrations, failed)
		if r := assessed(); r.Attention != want {
			t.Errorf("the attempt is %s, and one of a person failed: %s, %q", attempt, r.Attention, r.Next)
		}
		cluster.States[0].Status.Conditions[1].Reason = migrationv1alpha1.StateReasonNotSelected
		if r := assessed(); r.Migration.Name != failed.Name {
			t.Errorf("the attempt is %s, and the trigger creates no other: %s matters", attempt, r.Migration.Name)
		}
		cluster.Migrations = cluster.Migrations[:1]
		pending := migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "by-a-person"}}
		pending.Spec = kept.Spec
		cluster.Migrations = append(cluster.Migrations, pending)
		if r := assessed(); r.Attention != Wait || r.Migration.Name != pending.Name {
			t.Errorf("the attempt is %s, and another one waits: %s, %q", attempt, r.Attention, r.Next)
		}
	}
}

// TestNoRoleWithoutAMigration has a migration of admission objects that failed without a permission, and servers of
// which one does not answer.
func TestNoRoleWithoutAMigration(t *testing.T) {
	name := schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"}
	var failed migrationv1alpha1.StorageVersionMigration
	failed.Spec.Resource.Group, failed.Spec.Resource.Resource = name.Group, name.Resource
	failed.Status.Conditions = []migrationv1alpha1.MigrationCondition{{
		Type: migrationv1alpha1.MigrationFailed, Status: "True", Reason: migrationv1alpha1.MigrationReasonListRefused,
	}}
	s := migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: name.String()}}
	s.Spec.Resource = migrationv1alpha1.GroupResource{Group: name.Group, Resource: name.Resource}
	s.Status.Epoch = 1
	s.Status.Conditions = []metav1.Condition{
		{Type: "Agreed", Status: "False", Reason: migrationv1alpha1.StateReasonServersUnseen},
		{Type: "SafeToRemoveOldVersions", Status: "False", Reason: migrationv1alpha1.StateReasonAwaitingAgreement},
	}
	cluster := &cli.Cluster{
		States: []migrationv1alpha1.StorageState{s}, Migrations: []migrationv1alpha1.StorageVersionMigration{failed},
	}
	r := Resources(cluster, []schema.GroupResource{name}, Manager{}, time.Now())[0]
	if r.Verb != "" || r.Permission != "" {
		t.Errorf("the verb is %q, and the permission %q", r.Verb, r.Permission)
	}
}

// TestUnstored has a resource of which the manager keeps no StorageState.
func TestUnstored(t *testing.T) {
	widgets := schema.GroupResource{Resource: "widgets"}
	cluster := &cli.Cluster{Catalog: &cli.Catalog{}}
	cluster.Catalog.Add(widgets)
	found := cluster.Catalog.Find(widgets)
	found.Unstored, found.Versions = true, []string{"v1"}
	r := Resources(cluster, []schema.GroupResource{widgets}, Manager{}, time.Now())[0]
	if r.Safe || r.Attention != Act || r.Reason != ReasonNotObserved || r.Next != "nothing is recorded" {
		t.Errorf("got %+v", r)
	}
}

// TestGone has a resource of which nothing is left but a migration that has failed.
func TestGone(t *testing.T) {
	widgets := schema.GroupResource{Resource: "widgets"}
	cluster := &cli.Cluster{Catalog: &cli.Catalog{}}
	cluster.Catalog.Add(widgets)
	cluster.Catalog.Find(widgets).Unstored = true
	r := Resources(cluster, []schema.GroupResource{widgets}, Manager{}, time.Now())[0]
	if r.Safe || r.Attention != Act || r.Reason != "NotServed" || !r.Gone || r.Next != "it is gone" || r.Verb != "" {
		t.Errorf("got %+v", r)
	}
}

// TestNotWritten has resources without a StorageState. Only a manager that leads for long is the cause.
func TestNotWritten(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name      string
		resource  schema.GroupResource
		leads     time.Duration // zero means that no manager does
		attention Attention
		says      string
	}{
		{"no manager", schema.GroupResource{Resource: "secrets"}, 0, Wait, "The trigger has not written"},
		{"a manager has just started", schema.GroupResource{Resource: "secrets"}, time.Minute, Wait,
			"The trigger has not written"},
		{"the manager writes nothing", schema.GroupResource{Resource: "secrets"}, time.Hour, Act,
			"The manager that leads has not written a StorageState of the resource. Its log says why"},
		{"a new definition", schema.GroupResource{Group: "example.com", Resource: "widgets"}, time.Hour, Wait,
			"The trigger has not written"},
	} {
		t.Run(test.name, func(t *testing.T) {
			manager := Manager{}
			if test.leads > 0 {
				manager = ManagerOf(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
					HolderIdentity: ptr.To("cp-1"), RenewTime: &metav1.MicroTime{Time: now},
					AcquireTime: &metav1.MicroTime{Time: now.Add(-test.leads)},
				}}, nil, nil, now)
			}
			cluster := &cli.Cluster{Catalog: &cli.Catalog{}}
			r := Resources(cluster, []schema.GroupResource{test.resource}, manager, now)[0]
			if r.Attention != test.attention || r.Reason != ReasonNotObserved || !strings.HasPrefix(r.Message, test.says) {
				t.Errorf("got %+v", r)
			}
		})
	}
}

func TestDoubt(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		confirmed time.Time
		want      string // in it; none means that there is no doubt
	}{
		{now.Add(-time.Hour), ""},
		{now.Add(50 * time.Second), ""},
		{now.Add(-2 * time.Hour), "has not confirmed the StorageState for 120m"},
		{now.Add(2 * time.Hour), "confirmed the StorageState 120m in the future, so it is not known how old that is: set"},
		{time.Time{}, "has not confirmed the StorageState yet"},
	} {
		state := &migrationv1alpha1.StorageState{}
		state.Status.LastHeartbeatTime.Time = test.confirmed
		if got := Doubt(state, now); !strings.Contains(got, test.want) || test.want == "" && got != "" {
			t.Errorf("confirmed at %v: got the doubt %q, want %q", test.confirmed, got, test.want)
		}
	}
}

func TestProgress(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	running := Migration{State: migrationv1alpha1.MigrationRunning, Reason: "Rewriting"}
	counted := running
	counted.Processed = 1
	whole := running
	whole.PercentComplete, whole.EstimatedTotal = ptr.To[int32](100), ptr.To[int64](1234567)
	whole.ObjectsPerMinute, whole.Denied, whole.Reason = ptr.To[int64](1000), 2, "RetryingTransientErrors"
	whole.EstimatedCompletionTime, whole.Message = &metav1.Time{Time: now}, "A webhook is away."
	for want, m := range map[string]Migration{
		"":              {State: migrationv1alpha1.MigrationWaiting},
		"running":       running,
		"1 object done": counted,
		"[##########] 100% of 1,234,567 objects, 1,000/min, ends now, 2 denied, RetryingTransientErrors": whole,
	} {
		if got := m.Progress(now); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if m.Failing() {
			want += ": A webhook is away."
		}
		if got := m.News(now); got != want {
			t.Errorf("got the news %q, want %q", got, want)
		}
	}
}
