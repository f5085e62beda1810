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

package stored

import (
	"bytes"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/util/json"
	kmstypes "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2/v2"

	"sigs.k8s.io/svm-controller-manager/pkg/releases"
)

// Format is how the bytes of an object are to be read.
type Format string

const (
	// Protobuf is what kube-apiserver uses for built-in resources.
	Protobuf Format = "protobuf"
	// JSON is what it uses for custom resources.
	JSON Format = "json"
	// CBOR is what it uses for custom resources with the feature gate CBORServingAndStorage.
	CBOR Format = "cbor"
	// Encrypted bytes do not tell the version of the object.
	Encrypted Format = "encrypted"
	// Unreadable bytes are none of these.
	Unreadable Format = "unreadable"
)

// Form is how an object is stored.
type Form struct {
	Format Format
	// APIVersion and Kind are those of the stored bytes, for example apps/v1. They are empty unless the format is
	// Protobuf, JSON or CBOR.
	APIVersion, Kind string
	// Provider and Key are what the object is encrypted with, for example aescbc and key1, or kms:v2 and the name of the
	// plugin. They are empty unless the format is Encrypted.
	Provider, Key string
	// KeyID is the identifier that a plugin of KMS v2 has given its key. It changes when the key is rotated.
	KeyID string
}

const (
	encryptedPrefix = "k8s:enc:"
	protobufPrefix  = "k8s\x00"
	// cborPrefix is the tag with which self-described CBOR begins.
	cborPrefix = "\xd9\xd9\xf7"
)

// FormOf reads how a value of etcd is stored. It never fails: what it cannot read is Unreadable.
func FormOf(value []byte) Form {
	if rest, is := bytes.CutPrefix(value, []byte(encryptedPrefix)); is {
		return encryptedForm(rest)
	}
	var format Format
	var meta runtime.TypeMeta
	var err error
	if rest, is := bytes.CutPrefix(value, []byte(protobufPrefix)); is {
		var unknown runtime.Unknown
		format, err = Protobuf, unknown.Unmarshal(rest)
		meta = unknown.TypeMeta
	} else if bytes.HasPrefix(value, []byte(cborPrefix)) {
		var fields map[string]any
		format, err = CBOR, direct.Unmarshal(value, &fields)
		meta.APIVersion, _ = fields["apiVersion"].(string)
		meta.Kind, _ = fields["kind"].(string)
	} else {
		format, err = JSON, json.Unmarshal(value, &meta)
	}
	if err != nil || meta.APIVersion == "" || meta.Kind == "" {
		return Form{Format: Unreadable}
	}
	return Form{Format: format, APIVersion: meta.APIVersion, Kind: meta.Kind}
}

// named returns the form with the full name of its key, if that is one of keys. The name of a key may have colons, and
// FormOf takes only what is before the first one. A key is written as its provider, a colon, and its name.
func (f Form) named(value []byte, keys []string) Form {
	for _, key := range keys {
		name, found := strings.CutPrefix(key, f.Provider+":")
		start := encryptedPrefix + f.Provider + ":v1:" + name + ":"
		if f.Provider == "kms:v1" {
			start = encryptedPrefix + key + ":"
		}
		if found && strings.Contains(name, ":") && bytes.HasPrefix(value, []byte(start)) {
			f.Key = name
		}
	}
	return f
}

// encryptedForm reads what follows the prefix of an encrypted value: the provider, the version of its format, the key,
// and the encrypted bytes, with colons in between.
func encryptedForm(rest []byte) Form {
	form := Form{Format: Encrypted}
	provider, rest, _ := bytes.Cut(rest, []byte(":"))
	version, rest, _ := bytes.Cut(rest, []byte(":"))
	key, sealed, complete := bytes.Cut(rest, []byte(":"))
	if !complete {
		return form
	}
	form.Provider, form.Key = string(provider), string(key)
	if form.Provider == "kms" {
		form.Provider += ":" + string(version)
	}
	if form.Provider == "kms:v2" {
		object := &kmstypes.EncryptedObject{}
		if proto.Unmarshal(sealed, object) == nil {
			form.KeyID = object.GetKeyID()
		}
	}
	return form
}

// Place is where an object is stored.
type Place struct {
	// Group is empty for the resources of kube-apiserver itself, whose keys do not tell their group, with the exception of
	// those of apiextensions.k8s.io and apiregistration.k8s.io.
	Group string
	// Resource is the name in the key. It is the name of a resource, or of something that API servers keep for themselves.
	Resource string
}

// specialFolders are the folders that are not named after their resource.
var specialFolders = map[string]string{
	"controllers": "replicationcontrollers",
	"ingress":     "ingresses",
	"minions":     "nodes",
}

// neverEncrypted are the folders of objects that kube-apiserver keeps for itself, and does not encrypt, whatever its
// EncryptionConfiguration says: no resource has these objects.
var neverEncrypted = []string{"masterleases", "peerserverleases", "ranges"}

// NeverEncrypted reports whether kube-apiserver never encrypts what has this name, which is that of a [Tally].
func NeverEncrypted(name string) bool { return slices.Contains(neverEncrypted, name) }

// placeOf reads what the key of an object tells about its resource. The prefix is that of all keys of the API servers,
// for example /registry.
func placeOf(key, prefix string) Place {
	rest := strings.Trim(strings.TrimPrefix(key, prefix), "/")
	parts := strings.Split(rest, "/")
	var place Place
	// The groups of custom resources have a dot, and names of resources have none. An aggregated server may have another
	// prefix of its own, which is a group as well.
	for len(parts) > 1 && strings.Contains(parts[0], ".") {
		place.Group, parts = parts[0], parts[1:]
	}
	place.Resource = parts[0]
	switch {
	case place.Group != "":
	case place.Resource == "services" && len(parts) > 2 && parts[1] == "endpoints":
		place.Resource = "endpoints"
	case specialFolders[place.Resource] != "":
		place.Resource = specialFolders[place.Resource]
	}
	return place
}

// withoutGroup reports whether kube-apiserver has the group, or a newer one may have it. Its keys lack the group.
func withoutGroup(group string) bool {
	return group == "" || releases.BuiltIn(group) || strings.HasSuffix(group, ".k8s.io")
}

// folders returns the prefixes of the keys under which objects of a resource may be. Other objects may be there too.
func (p Place) folders(prefix string) []string {
	folders := []string{p.Resource + "/"}
	for folder, resource := range specialFolders {
		if resource == p.Resource {
			folders = append(folders, folder+"/")
		}
	}
	if p.Resource == "endpoints" {
		folders = append(folders, "services/endpoints/")
	}
	if p.Group != "" {
		folders = append(folders, p.Group+"/"+p.Resource+"/", p.Group+"/"+p.Group+"/"+p.Resource+"/")
	}
	for i := range folders {
		folders[i] = strings.TrimSuffix(prefix, "/") + "/" + folders[i]
	}
	return folders
}
