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
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// crowd is how many threads a processor may have to run when the control plane of a test starts. With many more,
	// hooks of kube-apiserver take longer than it allows. A start itself adds two or three.
	crowd = 3
	// crowdSamples are taken at intervals of pollInterval.
	crowdSamples = 10
	// crowdPatience bounds the wait, as the crowd may have nothing to do with control planes.
	crowdPatience = 10 * time.Minute
)

// takeTurn waits until fewer than most others have a turn, in all processes with the same folder for temporary files,
// and returns how to end the turn. The turn of a process ends with it.
func takeTurn(ctx context.Context, most int) (release func(), err error) {
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
		for i := range most {
			file, err := openForAll(filepath.Join(os.TempDir(), fmt.Sprintf("svm-controlplane-turn-%d", i)))
			if err != nil {
				return false, err
			}
			if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
				release = func() { _ = file.Close() }
				return true, nil
			}
			_ = file.Close()
		}
		return false, nil
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for others that start an API server: %w", err)
	}
	return release, nil
}

// openForAll opens a file that any user may lock. It creates the file only if it is missing: Linux lets nobody, not
// even root, open the file of another user with O_CREAT in a folder such as /tmp.
func openForAll(path string) (*os.File, error) {
	file, err := os.Open(path)
	if !errors.Is(err, os.ErrNotExist) {
		return file, err
	}
	if file, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644); err != nil {
		return nil, err
	}
	return file, file.Chmod(0o644) // also with a strict umask
}

// awaitCalm waits until the processors have less to do, but not for ever.
func awaitCalm(ctx context.Context) error {
	most := crowdSamples * crowd * runtime.NumCPU()
	var samples []int
	err := wait.PollUntilContextTimeout(ctx, pollInterval, crowdPatience, true, func(context.Context) (bool, error) {
		n, err := runnable()
		if err != nil {
			return false, err
		}
		samples = append(samples, n)
		if len(samples) < crowdSamples {
			return false, nil
		}
		sum := 0
		for _, n := range samples[len(samples)-crowdSamples:] {
			sum += n
		}
		return sum <= most, nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return nil
	}
	return err
}

// runnable counts the threads on this machine that run or could run.
func runnable() (n int, err error) {
	const path, line = "/proc/stat", "procs_running "
	stat, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("asking how busy this machine is: %w", err)
	}
	_, counts, found := strings.Cut(string(stat), line)
	if !found {
		return 0, fmt.Errorf("%s has no line %q", path, line)
	}
	if _, err := fmt.Sscan(counts, &n); err != nil {
		return 0, fmt.Errorf("reading the line %q of %s: %w", line, path, err)
	}
	return n, nil
}
