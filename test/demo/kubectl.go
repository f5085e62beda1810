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

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// notSafe is the exit code of the plugin if something is not safe, or objects are denied.
const notSafe = 2

// kubectl runs a command of kubectl as an administrator, and shows it with what it prints. It fails unless the exit
// code is one of those that are wanted; without any, that is zero.
func (d *demo) kubectl(ctx context.Context, args []string, want ...int) error {
	d.out.command("kubectl %s", strings.Join(args, " "))
	printed, err := d.quietly(ctx, args, want...)
	d.out.table(printed)
	return err
}

// quietly runs a command of kubectl and returns what it prints.
func (d *demo) quietly(ctx context.Context, args []string, want ...int) (string, error) {
	binary, err := controlplane.Binary("kubectl")
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, binary, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+d.kubeconfig,
		"PATH="+filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"))
	printed, err := command.CombinedOutput()
	code := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code, err = exit.ExitCode(), nil
	}
	if err != nil {
		return "", fmt.Errorf("running kubectl %s: %w", args[0], err)
	}
	if len(want) == 0 {
		want = []int{0}
	}
	for _, wanted := range want {
		if code == wanted {
			return string(printed), nil
		}
	}
	return string(printed), fmt.Errorf("kubectl %s ended with exit code %d, not %d:\n%s",
		strings.Join(args, " "), code, want, printed)
}
