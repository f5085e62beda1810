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

package storageversion

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// ErrEarlier says that a list shows an earlier state of etcd than was seen before. One list proves nothing: kine, which
// stores Kubernetes in SQL databases, can tell an API server an old revision until that server writes again.
var ErrEarlier = errors.New("perhaps etcd was restored from a backup, perhaps only the API server is late")

// ErrRestored says that etcd was restored from a backup. What this process knows is of another time.
var ErrRestored = errors.New("etcd was restored from a backup, or replaced by an earlier state")

// CheckRestored returns ErrRestored if an object that was read from etcd now is older than it was when it was read or
// written before. what names the object.
func CheckRestored(what, now, before string) error {
	if order, err := resourceversion.CompareResourceVersion(now, before); err != nil || order >= 0 {
		return nil
	}
	return fmt.Errorf("%s has resource version %s, and had %s: %w", what, now, before, ErrRestored)
}
