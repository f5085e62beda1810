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

// Screens draws commands and what they printed as an SVG. It reads what "make demo" prints on a terminal. Each argument
// is the begin of a command, "=", and a text that its output has to have; the first that fits is drawn.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// What the narrator of the demo prints around commands and tables.
const (
	commandMark = "\x1b[1m            $ "
	tableMark   = "            "
	reset       = "\x1b[0m"
)

// The drawing. A terminal of this width shows the tables in one piece.
const (
	columns    = 120
	charWidth  = 7.8
	lineHeight = 17
	margin     = 16
)

// screen is a command and its output.
type screen struct {
	command string
	lines   []string
}

func main() {
	if err := run(os.Stdin, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer, wanted []string) error {
	recorded, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	all := parse(string(recorded))
	var chosen []screen
	for _, want := range wanted {
		command, has, _ := strings.Cut(want, "=")
		i := slices.IndexFunc(all, func(s screen) bool {
			return strings.HasPrefix(s.command, command) && strings.Contains(strings.Join(s.lines, "\n"), has)
		})
		if i < 0 {
			return errors.New("the demo has not shown " + want)
		}
		chosen = append(chosen, all[i])
	}
	_, err = io.WriteString(out, draw(chosen))
	return err
}

// parse finds the commands and the lines below them. Explanations and what the demo saw look different.
func parse(recorded string) (all []screen) {
	inside := false
	for line := range strings.Lines(recorded) {
		line = strings.TrimRight(line, "\r\n")
		command, isCommand := strings.CutPrefix(line, commandMark)
		text, isTable := strings.CutPrefix(line, tableMark)
		switch {
		case isCommand:
			all = append(all, screen{command: strings.TrimSuffix(command, reset)})
		case inside && isTable:
			last := &all[len(all)-1]
			last.lines = append(last.lines, text)
		}
		inside = isCommand || inside && isTable
	}
	return all
}

func draw(screens []screen) string {
	var b strings.Builder
	row := 0
	line := func(class, text string) {
		row++
		escaped := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)
		fmt.Fprintf(&b, `<text class="%s" x="%d" y="%d" xml:space="preserve">%s</text>`+"\n", class, margin,
			margin+row*lineHeight-4, escaped)
	}
	for i, s := range screens {
		if i > 0 {
			line("out", "")
		}
		line("cmd", "$ "+s.command)
		for _, text := range s.lines {
			for _, part := range folded(strings.TrimRight(text, " ")) {
				line("out", part)
			}
		}
	}
	width, height := 2*margin+int(columns*charWidth), 2*margin+row*lineHeight
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d">
<style>text{font:13px ui-monospace,Menlo,monospace}.cmd{fill:#7ee787;font-weight:bold}.out{fill:#e6edf3}</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
`, width, height, width, height) + b.String() + "</svg>\n"
}

// folded breaks a line between words where it is longer than the terminal is wide.
func folded(text string) (parts []string) {
	for len(text) > columns {
		at := strings.LastIndex(text[:columns+1], " ")
		if at <= 0 {
			at = columns
		}
		parts, text = append(parts, text[:at]), strings.TrimLeft(text[at:], " ")
	}
	return append(parts, text)
}
