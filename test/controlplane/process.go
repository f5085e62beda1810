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
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	// gracePeriod is how long a process may take to end after it was asked to.
	gracePeriod = 70 * time.Second
	// tailLines is how much of a log goes into an error.
	tailLines = 25
)

// ErrNotRunning says that a process was to be signaled that has ended or was never started.
var ErrNotRunning = errors.New("the process is not running")

// Program is something to run beside the control plane: a controller manager, a client under load, a second control
// plane's part.
type Program struct {
	// Name names the log. Several runs of the same name append to the same log.
	Name string
	// Path is the executable.
	Path string
	Args []string
	// Env is added to the environment of this process.
	Env []string
	// Host runs the program on the host of that name, which is added if there is none. Empty runs it where this process
	// is.
	Host string
}

// Process is a running program. It cannot outlive this process, however that one ends. Its methods may be called from
// any goroutine.
type Process struct {
	name    string
	logPath string
	cmd     *exec.Cmd
	done    chan struct{}

	mu       sync.Mutex
	expected bool  // this package ended it
	err      error // how it ended; set before done is closed
}

// startProcess starts p on h, with standard output and error appended to logPath.
func startProcess(h *Host, p Program, logPath string) (*Process, error) {
	log, err := os.OpenFile(filepath.Clean(logPath), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", p.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttributes()
	now, commandLine := time.Now().Format(time.RFC3339Nano), strings.Join(cmd.Args, " ")
	if _, err := fmt.Fprintf(log, "# %s started: %s\n", now, commandLine); err != nil {
		return nil, fmt.Errorf("writing the log of %s: %w", p.Name, err)
	}
	if err := h.thread.do(cmd.Start); err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.Name, err)
	}
	process := &Process{name: p.Name, logPath: logPath, cmd: cmd, done: make(chan struct{})}
	go process.reap()
	return process, nil
}

func (p *Process) reap() {
	err := p.cmd.Wait()
	// What it started ends with it, also if it ended by itself. An error means that there is nothing.
	_ = killGroup(p.Pid())
	p.mu.Lock()
	p.err = err
	p.mu.Unlock()
	close(p.done)
}

// Name is the name of the program.
func (p *Process) Name() string { return p.name }

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// LogPath is the file that standard output and error go to.
func (p *Process) LogPath() string { return p.logPath }

// Log returns what was logged so far, or the reason why it cannot be read.
func (p *Process) Log() string {
	data, err := os.ReadFile(p.logPath)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running tells whether the process has not ended. A paused one is running.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Wait waits for the end of the process and says how it ended, as exec.Cmd does.
func (p *Process) Wait() error {
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Kill ends the process, and those it started, with SIGKILL, and returns when it is gone.
func (p *Process) Kill() error {
	if err := p.signal(killGroup, true); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Stop asks the process to end (SIGTERM) and returns when it did. One that does not within 70 seconds is killed, and
// that is an error.
func (p *Process) Stop() error {
	if err := p.signal(terminate, true); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(gracePeriod):
		return errors.Join(fmt.Errorf("%s did not end within %v of SIGTERM", p.name, gracePeriod), p.Kill())
	}
}

// Pause stops the process where it is (SIGSTOP) and returns when it has stopped. Its connections stay open and silent.
func (p *Process) Pause() error { return p.signal(pauseGroup, false) }

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.signal(resumeGroup, false) }

func (p *Process) signal(send func(pid int) error, ends bool) error {
	if !p.Running() {
		return fmt.Errorf("%s: %w", p.name, ErrNotRunning)
	}
	if ends {
		p.mu.Lock()
		p.expected = true
		p.mu.Unlock()
	}
	if err := send(p.Pid()); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// unexpectedEnd tells how the process ended if nobody asked it to.
func (p *Process) unexpectedEnd() error {
	if p.Running() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.expected {
		return nil
	}
	if p.err == nil {
		return fmt.Errorf("%s ended by itself", p.name)
	}
	return fmt.Errorf("%s ended by itself: %w", p.name, p.err)
}

// tail is the end of the log, for errors.
func (p *Process) tail() string {
	lines := bytes.Split(bytes.TrimSpace([]byte(p.Log())), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-tailLines):], []byte("\n")))
}
