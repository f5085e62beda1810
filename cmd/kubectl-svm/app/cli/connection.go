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
	"crypto/rand"
	"errors"
	"net/url"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/cli-runtime/pkg/printers"
)

// connecting are the flags of kubectl that select the cluster and the user. A token or a password is none of them: it
// would be left in logs.
var connecting = sets.New("kubeconfig", "context", "cluster", "user", "server", "tls-server-name",
	"insecure-skip-tls-verify", "certificate-authority", "client-certificate", "client-key", "as", "as-uid", "as-group",
	"as-user-extra", "proxy-url")

// userinfo is the user and the password of a URL.
var userinfo = regexp.MustCompile(`^(\w+://)?[^/?#]*@`)

// WithoutPassword returns a URL without user and password. Of one that cannot be parsed, for example because its
// password has a slash, it returns what follows the last @.
func WithoutPassword(address string) string {
	_, rest, found := strings.Cut(address, "://")
	if !found {
		rest = address
	}
	if _, err := url.Parse("https://" + rest); err != nil {
		return rest[strings.LastIndex(rest, "@")+1:]
	}
	return userinfo.ReplaceAllString(address, "$1")
}

// credentials are what a text has before the last @ of a URL with a password.
var credentials = regexp.MustCompile(`[^\s"]+:[^\s"]*@`)

// HidePassword returns an error about a URL that cannot be parsed, without its user and password.
func HidePassword(err error) error { return errors.New(credentials.ReplaceAllString(err.Error(), "")) }

// ConnectionFlags returns those that are set on the command line.
func ConnectionFlags(cmd *cobra.Command) string {
	var words []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !connecting.Has(f.Name) {
			return
		}
		values := []string{f.Value.String()}
		if f.Name == "server" || f.Name == "proxy-url" {
			values[0] = WithoutPassword(values[0])
		}
		if list, is := f.Value.(pflag.SliceValue); is {
			values = list.GetSlice()
		}
		for _, value := range values {
			words = append(words, "--"+f.Name+"="+quote(value))
		}
	})
	return strings.Join(words, " ")
}

// plainWord is what a shell takes as it is.
var plainWord = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// quote returns a word as a shell takes it.
func quote(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// mark stands for the connection flags in each command that the plugin writes. Nobody can guess it, so no text of a
// cluster, for example the answer of a webhook, gets flags.
var mark = rand.Text()

// Begins of the commands that the plugin writes into texts, which have to be printed by the methods of this package:
// these put in the flags, so that a command acts on the cluster that was asked. kubectl takes no flags before the name
// of a plugin.
var (
	Kubectl = "kubectl" + mark
	SVM     = "kubectl svm" + mark
)

// addFlags puts the flags into the commands of a text. Without flags, the commands are as a person types them.
func addFlags(text, flags string) string {
	if flags != "" {
		flags = " " + flags
	}
	return strings.ReplaceAll(text, mark, flags)
}

// legible returns a text for a person. It is escaped for terminals, because it may quote others, for example a webhook.
func (e *Env) legible(text string) string {
	return printers.EscapeTerminal(addFlags(text, e.ConnectionFlags))
}
