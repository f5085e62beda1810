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
	"fmt"
	"io"
	"os"
	"time"
)

const (
	bold  = "\033[1;36m"
	green = "\033[32m"
	reset = "\033[0m"
)

// narrator tells what happens: in color on a terminal, with the time since the start.
type narrator struct {
	out   io.Writer
	color bool
	began time.Time
	steps int
}

func newNarrator(out *os.File) *narrator {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""
	return &narrator{out: out, color: terminal, began: time.Now()}
}

// step announces what comes next.
func (n *narrator) step(format string, args ...any) {
	n.steps++
	n.print(bold, "\n%d. %s", n.steps, fmt.Sprintf(format, args...))
}

// saw tells what was found to be so.
func (n *narrator) saw(format string, args ...any) {
	n.print(green, "   [%5.1fs] %s", time.Since(n.began).Seconds(), fmt.Sprintf(format, args...))
}

func (n *narrator) print(color, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if n.color {
		text = color + text + reset
	}
	fmt.Fprintln(n.out, text)
}
