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

package observer

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// whyReplicasDiffer returns why replicas of the server behind a Service may write something else than the one that is
// asked, and what to do. It is empty if they do not. The aggregator leads to any one of them, so a document is from one
// and stands for all. Replicas of one revision of a workload have the same program and the same flags. Without
// EndpointSlices the Service stands for one server somewhere else.
func whyReplicasDiffer(ctx context.Context, host documents.Reader, service types.NamespacedName) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*requestTimeout)
	defer cancel()
	unknown := func(err error) (string, error) {
		help := "The manager asks again"
		if apierrors.IsForbidden(err) {
			help = "Allow the manager to list EndpointSlices and to get Pods in the namespace of the Service"
		}
		return fmt.Sprintf("the replicas of the server behind the Service %s are not known: %v. %s", service, err, help), err
	}
	if content.IsPathSegmentName(service.Namespace) != nil { // Nobody checks it, and it becomes a part of a path.
		return unknown(fmt.Errorf("%q is no namespace", service.Namespace))
	}
	list, ofService := &discoveryv1.EndpointSliceList{}, discoveryv1.LabelServiceName+"="+service.Name
	err := host.Decode(ctx, slicesPath(service.Namespace), map[string]string{"labelSelector": ofService},
		runtime.ContentTypeJSON, "EndpointSliceList", list)
	if err != nil {
		return unknown(err)
	}
	pods, others := answeringEndpoints(list.Items)
	switch {
	case len(pods)+others <= 1:
		return "", nil
	case others > 0:
		return fmt.Sprintf("each request reaches one of %d replicas behind the Service %s, which may write different "+
			"encodings: its EndpointSlices do not name Pods. Let one replica answer while resources of this server are to be "+
			"migrated, or run the replicas as Pods of one Deployment, StatefulSet or DaemonSet", len(pods)+others, service), nil
	}
	revisions := sets.Set[string]{}
	for _, pod := range sets.List(pods) {
		meta := &metav1.PartialObjectMetadata{}
		err := host.Decode(ctx, "/api/v1/namespaces/"+service.Namespace+"/pods/"+pod, nil,
			runtime.ContentTypeJSON+documents.AsMetadata, "PartialObjectMetadata", meta)
		if err != nil {
			return unknown(err)
		}
		revisions.Insert(revisionOfPod(meta))
	}
	if len(revisions) > 1 {
		return fmt.Sprintf("each request reaches one of %d replicas behind the Service %s. They are of %d revisions, which "+
			"may write different encodings. This ends when a rollout is over. If none is under way, let one replica answer, or "+
			"run the replicas as Pods of one Deployment, StatefulSet or DaemonSet", len(pods), service, len(revisions)), nil
	}
	return "", nil
}

// answeringEndpoints returns the names of the Pods to which requests may go, and the number of endpoints that are no
// Pods. An endpoint that stops still finishes requests, so it counts. One with addresses of two families is in two
// slices, and counts once.
func answeringEndpoints(all []discoveryv1.EndpointSlice) (pods sets.Set[string], others int) {
	pods = sets.Set[string]{}
	counts := map[discoveryv1.AddressType]int{}
	for _, slice := range all {
		for _, endpoint := range slice.Endpoints {
			if !ptr.Deref(endpoint.Conditions.Ready, true) && !ptr.Deref(endpoint.Conditions.Serving, false) {
				continue
			}
			// Nobody checks the name, and it becomes a part of a path.
			if target := endpoint.TargetRef; target != nil && target.Kind == "Pod" &&
				len(content.IsPathSegmentName(target.Name)) == 0 {
				pods.Insert(target.Name)
				continue
			}
			counts[slice.AddressType]++ // The same address at another port is another server.
			others = max(others, counts[slice.AddressType])
		}
	}
	return pods, others
}

// revisionOfPod returns what Pods have in common that were made from the same template. A ReplicaSet has one template.
// StatefulSets and DaemonSets label their Pods. Any other Pod is a revision of its own.
func revisionOfPod(pod *metav1.PartialObjectMetadata) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return string(pod.UID)
	}
	labels := pod.Labels
	hashed := slices.Contains([]string{"StatefulSet", "DaemonSet"}, owner.Kind)
	if owner.Kind != "ReplicaSet" && !(hashed && labels[appsv1.ControllerRevisionHashLabelKey] != "") {
		return string(pod.UID)
	}
	return string(owner.UID) + "/" + labels[appsv1.ControllerRevisionHashLabelKey]
}
