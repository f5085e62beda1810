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

	"github.com/spf13/pflag"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/controller"
)

// ManagerLease is the flag --manager-lease.
type ManagerLease struct{ types.NamespacedName }

// AddTo adds the flag to a command. The default is that of the managers.
func (l *ManagerLease) AddTo(flags *pflag.FlagSet) {
	l.NamespacedName = types.NamespacedName{Namespace: metav1.NamespaceSystem, Name: names.Manager}
	flags.Var(l, "manager-lease",
		"Lease that the leading manager holds, as NAMESPACE/NAME. The command reads it to see whether a manager runs. "+
			"Give an empty value if the managers run without leader election.")
}

// String returns the value of the flag.
func (l *ManagerLease) String() string {
	if l.Name == "" {
		return ""
	}
	return l.NamespacedName.String()
}

// Set reads the flag.
func (l *ManagerLease) Set(key string) error {
	namespace, name, found := strings.Cut(key, "/")
	if key == "" {
		l.NamespacedName = types.NamespacedName{}
		return nil
	}
	if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return errors.New("write it as NAMESPACE/NAME, for example " + metav1.NamespaceSystem + "/" + names.Manager)
	}
	l.Namespace, l.Name = namespace, name
	return nil
}

// Type returns the type of the value, for --help.
func (l *ManagerLease) Type() string { return "string" }

// ErrNoLease means that managers run without leader election.
var ErrNoLease = errors.New("managers have no lease")

// Lease reads the lease. It returns nil if there is none.
func (c *Clients) Lease(ctx context.Context, l ManagerLease) (*coordinationv1.Lease, error) {
	if l.Name == "" {
		return nil, ErrNoLease
	}
	lease, err := c.Kube.CoordinationV1().Leases(l.Namespace).Get(ctx, l.Name, metav1.GetOptions{})
	if controller.SaysMissing(err, coordinationv1.Resource("leases"), l.Name) {
		return nil, nil
	}
	return lease, err
}
