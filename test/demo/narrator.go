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
	"strings"
	"time"
)

const (
	bold   = "\033[1;36m"
	strong = "\033[1m"
	dim    = "\033[2m"
	green  = "\033[32m"
	yellow = "\033[33m"
	reset  = "\033[0m"

	// indent is as wide as the time in front of a line.
	indent = "            "
	// width is how long the lines of explanations are.
	width = 120
)

// narrator prints what happens, with the time since the start. On a terminal it uses color.
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

// step prints what comes next.
func (n *narrator) step(format string, args ...any) {
	n.steps++
	n.print(bold, fmt.Sprintf("\n%d. ", n.steps)+fmt.Sprintf(format, args...))
}

// explain prints why something is as it is.
func (n *narrator) explain(format string, args ...any) {
	for _, line := range broken(fmt.Sprintf(format, args...), width-len(indent)) {
		n.print(dim, indent+line)
	}
}

// command prints the command with which people do the same.
func (n *narrator) command(format string, args ...any) {
	n.print(strong, indent+"$ "+fmt.Sprintf(format, args...))
}

// table prints the output of such a command.
func (n *narrator) table(text string) {
	for line := range strings.Lines(text) {
		n.print("", indent+strings.TrimRight(line, " \n"))
	}
}

// quote prints a message of a program.
func (n *narrator) quote(text string) {
	for _, line := range broken(text, width-len(indent)) {
		n.print("", indent+line)
	}
}

// saw prints an observation.
func (n *narrator) saw(format string, args ...any) { n.tell(green, format, args...) }

// warn prints an observation of a problem, or an action that causes one.
func (n *narrator) warn(format string, args ...any) { n.tell(yellow, format, args...) }

func (n *narrator) tell(color, format string, args ...any) {
	prefix := fmt.Sprintf("   [%5.1fs] ", time.Since(n.began).Seconds())
	for _, line := range broken(fmt.Sprintf(format, args...), width-len(indent)) {
		n.print(color, prefix+line)
		prefix = indent
	}
}

func (n *narrator) print(color, text string) {
	if n.color && color != "" {
		text = color + text + reset
	}
	fmt.Fprintln(n.out, text)
}

// broken breaks text between words into lines of most characters at most, if no word is longer.
func broken(text string, most int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > most {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
