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
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	beginMarker = "<!-- begin: written by make bench -->"
	endMarker   = "<!-- end: written by make bench -->"
)

// publish prints the tables, draws the plots, and writes both into the document.
func (r *results) publish(o options) error {
	r.writeTables(os.Stdout, "")
	if o.document == "" {
		return r.draw(o.out)
	}
	folder := strings.TrimSuffix(o.document, filepath.Ext(o.document))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := r.draw(folder); err != nil {
		return err
	}
	document, err := os.ReadFile(o.document)
	if err != nil {
		return err
	}
	before, rest, begins := bytes.Cut(document, []byte(beginMarker))
	_, after, ends := bytes.Cut(rest, []byte(endMarker))
	if !begins || !ends {
		return fmt.Errorf("%s does not have the lines %q and %q", o.document, beginMarker, endMarker)
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s%s\n\n", before, beginMarker)
	r.writeTables(&out, filepath.Base(folder))
	fmt.Fprintf(&out, "%s%s", endMarker, after)
	return os.WriteFile(o.document, out.Bytes(), 0o644)
}

// writeTables writes what was measured as Markdown, with the plots that are in that folder.
func (r *results) writeTables(out io.Writer, plots string) {
	fmt.Fprintf(out, "- command: `%s`\n- commit: `%s`, at %s\n- machine: %s\n", r.Command, r.Commit,
		r.Time.Format(time.RFC3339), r.Machine)
	fmt.Fprintf(out, "- load average before: %s; after: %s\n", r.Load, r.LoadAfter)
	if r.Scale != 1 {
		fmt.Fprintf(out, "- all numbers of objects are multiplied by %g\n", r.Scale)
	}
	if r.Quick {
		fmt.Fprintf(out, "- a quick run, which shows that the benchmark works; its figures say nothing\n")
	}
	fmt.Fprintf(out, "\n### Bounds\n\n| bound | allowed | found | |\n| --- | --- | --- | --- |\n")
	for _, b := range bounds {
		allowed, found, verdict := b.judge(r)
		fmt.Fprintf(out, "| %s | %s | %s | %s |\n", b.what, allowed, found, verdict)
	}
	for _, s := range scenarios {
		if names := r.contenders(s); len(names) > 0 {
			r.writeTable(out, s, names)
			for _, p := range plottedOf(s) {
				if plots != "" && len(r.bars(p)) > 0 {
					fmt.Fprintf(out, "\n![%s](%s/%s)\n", p.measure.title, plots, p.file())
				}
			}
		}
	}
	fmt.Fprintln(out)
}

// writeTable writes the table of a scenario: a row for each measure, a column for each contender.
func (r *results) writeTable(out io.Writer, s scenario, names []string) {
	fmt.Fprintf(out, "\n### %s\n\n| %s |\n|%s\n", s.title, strings.Join(append([]string{s.name}, names...), " | "),
		strings.Repeat(" --- |", len(names)+1))
	for _, m := range s.measures {
		row, empty := []string{m.title}, true
		for _, name := range names {
			cell := r.cell(s.name, name, m)
			empty = empty && cell == "–"
			row = append(row, cell)
		}
		if !empty {
			fmt.Fprintf(out, "| %s |\n", strings.Join(row, " | "))
		}
	}
}

// cell is the median, the least and the most, and the median divided by that of the migrator in tree.
func (r *results) cell(scenario, contender string, m measure) string {
	s, measured := r.of(scenario, contender, m)
	if !measured {
		return "–"
	}
	digits := m.digits
	cell := fmt.Sprintf("%.*f", digits, s.median)
	if s.least != s.most {
		cell += fmt.Sprintf(" (%.*f–%.*f)", digits, s.least, digits, s.most)
	}
	if times, comparable := ratio(scenario, m, contender, inTree)(r); comparable && contender != inTree && !m.plain {
		cell += fmt.Sprintf(", %.2f×", times)
	}
	return cell
}
