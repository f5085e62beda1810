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

package svmigrator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// An API server follows a CustomResourceDefinition if it writes the version that the definition says. API servers learn
// of a change through a watch, which may be late by any time. Until then they write the old version, and a write that
// they have accepted may reach etcd up to a request timeout later. So the migrator asks every server, and a migration
// starts when all of them have followed for a settle period.
//
// The version alone does not show whether a server has heard of the last change. That may be one of a schema, and a
// server with the schema of before drops fields. So each is also asked which generation of the definition it has heard
// of.
//
// A server answers from its discovery document, which changes before its writes do: after the document, the server
// replaces the handlers of the changed definitions one by one, under a lock that it also needs to build handlers for
// requests. How long that takes depends on how many definitions changed, so the settle period is longer by
// handlerPeriod for each definition of the cluster.

const (
	followersQueueName = rewrite.Subsystem + "_followers"
	// If a server does not follow yet, all are asked again after followRetry, doubling up to maxFollowRetry.
	followRetry    = 2 * time.Second
	maxFollowRetry = 30 * time.Second
	// handlerPeriod is how long a server with two cores needs to replace the handler of a definition of 200 kB. Most are
	// a tenth of that.
	handlerPeriod = 100 * time.Millisecond
	// followersWorkers is more than one, because a server may not answer.
	followersWorkers = 4
)

var (
	// errLags says that a server does not follow the CustomResourceDefinition yet.
	errLags = errors.New("it does not follow the CustomResourceDefinition yet")
	// errNotHeard says that a server has not heard of the last change of the CustomResourceDefinition.
	errNotHeard = errors.New("it has not heard of the last change of the CustomResourceDefinition yet (if this lasts " +
		"for minutes, restart it)")
	// errDoesNotServe says that a server serves no version of the CustomResourceDefinition.
	errDoesNotServe = errors.New("it does not serve the resource yet")
)

// followers knows since when all API servers have followed the definitions of the resources that are to be migrated.
type followers struct {
	env   *environment
	queue *controller.Queue[schema.GroupResource]
	// decideAgain is called whenever the servers of a resource were asked.
	decideAgain func(schema.GroupResource)

	known sync.Map // a *followRecord for each resource
}

// followRecord is what is known about how API servers follow one definition.
type followRecord struct {
	// contentSince is that of the observation when the servers were asked. What is known holds while it is the same.
	contentSince time.Time
	// since is when all servers were first found to follow the definition. It is zero before that.
	since time.Time
	// lag is why a server does not follow, or why it is not known whether it does. It is nil if all servers follow.
	lag error
	// tries is how often the servers were asked in a row with such a result.
	tries int
	// again is when the servers are asked again. It is zero if all servers follow.
	again time.Time
}

func newFollowers(env *environment, decideAgain func(schema.GroupResource)) *followers {
	f := &followers{env: env, decideAgain: decideAgain}
	f.queue = controller.NewQueue(controller.QueueOptions[schema.GroupResource]{
		Name: followersQueueName, Clock: env.clock, Handle: f.ask, Workers: followersWorkers,
		MinRetry: minRequeue, MaxRetry: maxRequeue,
	})
	return f
}

// ask finds out whether all servers follow the definition of a resource. It does nothing for resources that are not to
// be migrated.
func (f *followers) ask(ctx context.Context, resource schema.GroupResource) (again time.Time, err error) {
	observation := f.env.observer.Observe(resource)
	hash := lastWritten(&observation)
	switch {
	case observation.ContentSince.IsZero(): // There is no definition.
		f.known.Delete(resource)
		return time.Time{}, nil
	case hash == storageversion.Unknown, observation.Presence == storageversion.NotServed, !f.matters(resource):
		return time.Time{}, nil
	}
	known := f.recordOf(&observation)
	if !known.since.IsZero() || f.env.clock.Now().Before(known.again) {
		return known.again, nil // The servers are not asked more often when there are events about the resource.
	}
	began := f.env.clock.Now()
	found := followRecord{
		contentSince: observation.ContentSince, lag: f.env.everyServerFollows(ctx, &observation, hash),
	}
	switch {
	case errors.Is(found.lag, storageversion.ErrRestored):
		return time.Time{}, found.lag
	case found.lag == nil && f.env.observer.Observe(resource).ServersSince.After(began):
		found.lag = errors.New("an API server started or ended while they were asked")
	}
	if now := f.env.clock.Now(); found.lag == nil {
		found.since = now
	} else {
		found.tries = known.tries + 1
		found.again = now.Add(min(followRetry<<min(known.tries, 10), maxFollowRetry))
	}
	f.known.Store(resource, &found)
	f.decideAgain(resource)
	return found.again, nil
}

// matters reports whether objects of the resource are to be migrated, or will be soon.
func (f *followers) matters(resource schema.GroupResource) bool {
	state := f.env.caches.State(resource)
	if state != nil && !meta.IsStatusConditionTrue(state.Status.Conditions, migrationv1alpha1.StorageStateMigrated) {
		return true
	}
	return slices.ContainsFunc(f.env.caches.MigrationsOf(resource),
		func(m *migrationv1alpha1.StorageVersionMigration) bool { return !m.Finished() })
}

// recordOf returns what is known about the definition that was observed. It returns the zero value if the servers have
// to be asked: they were not asked yet, a server has come or left since, or the content of the definition has changed,
// or may have changed while nobody watched. Other generations say the same, so a server that follows one of them writes
// what all of them say.
func (f *followers) recordOf(o *storageversion.Observation) followRecord {
	loaded, _ := f.known.Load(o.Resource)
	known, _ := loaded.(*followRecord)
	if known == nil || !known.contentSince.Equal(o.ContentSince) ||
		!known.since.IsZero() && o.ServersSince.After(known.since) { // A server that was frozen may not follow.
		return followRecord{}
	}
	return *known
}

// check returns a decision to wait while a migration must not start because a server does not follow the definition
// yet, or has not followed it for long enough. A migration that has begun waits only after the content of the
// definition has changed. Otherwise it returns the given decision to go.
func (f *followers) check(m *migrationv1alpha1.StorageVersionMigration, decision Decision) Decision {
	resource := m.GroupResource()
	observation := f.env.observer.Observe(resource)
	if observation.Class != storageversion.Custom {
		return decision
	}
	now, known := f.env.clock.Now(), f.recordOf(&observation)
	settle := f.env.options.SettlePeriod + time.Duration(observation.DefinitionCount)*handlerPeriod
	if !m.Begun() { // Otherwise all servers followed when it started.
		away := f.env.observer.CheckCanAskEach()
		switch {
		case away == nil, known.since.IsZero():
		case errors.Is(away, storageversion.ErrNotReady):
			// It may stand still. Its writes end when it goes on, and the settle period, which begins anew then, is for them.
			known = followRecord{contentSince: observation.ContentSince, lag: away, again: now}
			f.known.Store(resource, &known)
			f.queue.AddAfter(resource, minRequeue)
		default: // A list or a meeting failed, which must not begin the settle period of every resource anew.
			return notAgreed("%v. The migration starts when every server can be asked", away).until(now.Add(maxFollowRetry))
		}
		if wait := f.notFollowed(resource, &known, decision.Target, settle); wait != nil {
			return *wait
		}
	}
	// A server that still has the schemas or the conversion of before may drop fields that are to be kept, also if there
	// is one version only: it drops what its schema lacks when it reads an object from etcd.
	contentSettled := observation.ContentSince.Add(settle)
	if now.Before(contentSettled) {
		return notAgreed("the versions, a schema, the status subresource or the strategy of conversion of the "+
			"CustomResourceDefinition changed at %s, or the manager started then. Rewriting begins at %s, when all servers use "+
			"what the definition says",
			observation.ContentSince.UTC().Format(time.RFC3339), contentSettled.UTC().Format(time.RFC3339)).until(contentSettled)
	}
	return decision
}

// notFollowed returns a decision to wait until all servers have followed the definition for the settle period, or
// nil if they have. It has the servers asked if nobody has.
func (f *followers) notFollowed(
	resource schema.GroupResource, known *followRecord, target *migrationv1alpha1.MigrationTarget, settle time.Duration,
) *Decision {
	now, start := f.env.clock.Now(), known.since.Add(settle)
	var wait Decision
	switch {
	case known.lag != nil:
		advice := ""
		switch {
		case errors.Is(known.lag, errLags):
			advice = ". If this lasts for minutes, restart that server"
		case errors.Is(known.lag, controller.ErrOutdated):
			advice = ". If this lasts for minutes, restart the manager (or kubectl svm run): its watch of " +
				"CustomResourceDefinitions hangs"
		}
		wait = notAgreed("%v. The migration starts when every server has followed, and written %s, for the settle period%s",
			known.lag, versionOfTarget(target), advice)
	case known.since.IsZero():
		// Not at once: the answers make the controller decide again, which may lead here again while they do not count.
		f.queue.AddAfter(resource, minRequeue)
		wait = notAgreed("the API servers are being asked whether they follow the CustomResourceDefinition").
			until(now.Add(maxFollowRetry)) // decideAgain is called earlier, when they were asked.
	case now.Before(start):
		wait = notAgreed("all servers have followed the CustomResourceDefinition since %s. The migration starts at "+
			"%s, when writes that began earlier have ended",
			known.since.UTC().Format(time.RFC3339), start.UTC().Format(time.RFC3339)).until(start)
	default:
		return nil
	}
	return &wait
}

// everyServerFollows asks each server whether it writes the encoding with a hash, and has heard of the definition that
// was observed. The error is errLags if a server writes something else, and errNotHeard if it has heard of an earlier
// definition. It names the server. It is neither if the definition is not the one that was observed, or cannot be read:
// then perhaps this process is late, and not the server. While a server cannot be asked, it asks none: thousands of
// resources may wait for that server.
func (e *environment) everyServerFollows(
	ctx context.Context, observation *storageversion.Observation, hash string,
) error {
	if err := e.observer.CheckCanAskEach(); err != nil {
		return err
	}
	version := strings.TrimPrefix(observation.Versions[hash], observation.Resource.Group+"/")
	mustReport := slices.Contains(observation.ServedVersions, version)
	err := e.observer.AskEach(ctx, func(ctx context.Context, server documents.Reader) error {
		reported, err := reportedHash(ctx, server, observation)
		switch {
		case err != nil:
			return err
		case reported == "" && mustReport:
			return errors.New("it does not report its storage version")
		case reported != "" && reported != hash:
			return errLags
		}
		heard, err := server.HeardDefinition(ctx, observation.Resource)
		if controller.SaysMissing(err, definitions, observation.Resource.String()) ||
			err == nil && isEarlier(heard, observation) {
			return errNotHeard
		}
		return err
	})
	if errors.Is(err, errLags) || errors.Is(err, errNotHeard) || errors.Is(err, errDoesNotServe) {
		if _, err := e.observedDefinition(ctx, *observation); err != nil {
			return err
		}
	}
	return err
}

// isEarlier reports whether a definition is an earlier one than was observed. One of another UID may be a later one:
// everyServerFollows reads the definition that there is.
func isEarlier(heard *metav1.PartialObjectMetadata, observation *storageversion.Observation) bool {
	last, _ := observation.Last()
	observed := last.Evidence.CustomResourceDefinition
	return observed == nil || heard.UID != observed.UID || heard.Generation < observed.Generation
}

// reportedHash returns the hash of the storage version that a server reports of a custom resource. It is empty if the
// storage version is not served. reportedHash also asks at versions that the definition no longer serves, because a
// server that does not follow it yet may serve only those. It does not take the versions from the document of the
// group: that is made from APIServices, which may be late.
func reportedHash(ctx context.Context, server documents.Reader, o *storageversion.Observation) (string, error) {
	for _, version := range slices.Concat(o.ServedVersions, o.DefinedVersions) {
		served, err := server.ServedAt(ctx, o.Resource.WithVersion(version))
		if err != nil {
			return "", err
		}
		if served != nil {
			return served.StorageVersionHash, nil // It is the same at every version.
		}
	}
	return "", errDoesNotServe
}
