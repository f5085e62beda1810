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
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Exit codes of the program, for scripts.
const (
	// ExitDone: the answer is yes, or what was asked for is done.
	ExitDone = 0
	// ExitError: the command failed, and says nothing about the cluster.
	ExitError = 1
	// ExitNotSafe: the command worked, and the answer is not yes: not safe, not known, or some objects are denied.
	ExitNotSafe = 2
	// ExitTimeout: --timeout passed before what the command waits for.
	ExitTimeout = 3
)

// Exit is an error that ends the program with a code of its own.
type Exit struct {
	Code int
	// Err is printed. It may be nil if the command has printed everything.
	Err error
}

// Error returns the message of the error that is printed.
func (e *Exit) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the error that is printed.
func (e *Exit) Unwrap() error { return e.Err }

// NotSafe ends the program with ExitNotSafe. The command has printed why.
func NotSafe() error { return &Exit{Code: ExitNotSafe} }

// Timeout ends the program with ExitTimeout. The message says what the command waited for.
func Timeout(format string, args ...any) error {
	return &Exit{Code: ExitTimeout, Err: fmt.Errorf(format, args...)}
}

// errTimeout is why the context of a command ends when --timeout has passed.
var errTimeout = errors.New("timeout")

// Within runs a command that must end within --timeout. Zero means no limit. An error after that time has ExitTimeout.
func Within(ctx context.Context, timeout time.Duration, run func(context.Context) error) error {
	if timeout == 0 {
		return run(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	err := run(ctx)
	if err == nil || !TimedOut(ctx) || errors.As(err, new(*Exit)) {
		return err
	}
	if request, is := errors.AsType[*url.Error](err); is {
		err = request // Explain has added that the API server could not be reached.
	}
	return Timeout("--timeout has passed: %w", err)
}

// TimedOut reports whether --timeout has passed.
func TimedOut(ctx context.Context) bool { return context.Cause(ctx) == errTimeout }

// ExitCode prints an error as kubectl does, and returns the exit code that stands for it.
func ExitCode(err error, env *Env) int {
	if err == nil {
		return ExitDone
	}
	code, printed := ExitError, err
	if exit, is := errors.AsType[*Exit](err); is {
		code, printed = exit.Code, exit.Err
	} else if errors.Is(err, context.Canceled) {
		printed = errors.New("interrupted")
	}
	if printed != nil {
		fmt.Fprintln(env.ErrOut, "error:", env.legible(printed.Error())) // It may quote a webhook.
	}
	return code
}

// Explain adds advice to an error of the API server, if there is any.
func Explain(err error) error { return ExplainOf(err, "--server, --kubeconfig and --context") }

// ExplainOf does that for the API server that these flags select.
func ExplainOf(err error, flags string) error {
	if failed, is := errors.AsType[*url.Error](err); is {
		failed.URL = WithoutPassword(failed.URL)
	}
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w\nAsk an administrator of the cluster for this permission; "+
			"docs/kubectl-svm.md lists those that each command needs", err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w\nThe API server does not accept the credentials of the kubeconfig: log in again", err)
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return fmt.Errorf("%w\nThe API server was reached, but its certificate is not accepted: check the CA and the "+
			"address of the server in the kubeconfig, the clock of this machine, and whether the certificate has expired. "+
			"%s select the server", err, flags)
	case errors.As(err, new(*url.Error)):
		return fmt.Errorf("%w\nThe API server could not be reached. %s select it", err, flags)
	default:
		return err
	}
}
