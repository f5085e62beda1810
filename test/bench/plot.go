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
	_ "embed"
	"os"
	"path/filepath"
	"text/template"
)

// plotted is a measure of a scenario that is drawn.
type plotted struct {
	scenario scenario
	measure  measure
}

func (p plotted) title() string {
	return p.measure.title + ": " + p.scenario.title
}

func (p plotted) file() string { return p.scenario.name + "-" + p.measure.key + ".svg" }

// drawn are the measures that are drawn where a scenario has them.
var drawn = []measure{perSecond, serverCPU, duringP99, peakMemory, left}

// plottedOf are the plots of a scenario.
func plottedOf(s scenario) (plots []plotted) {
	for _, m := range drawn {
		for _, has := range s.measures {
			if has == m {
				plots = append(plots, plotted{s, m})
			}
		}
	}
	return plots
}

//go:embed plot.svg.tmpl
var plotSource string

var plotTemplate = template.Must(template.New("plot").Funcs(template.FuncMap{
	"add": func(a, b float64) float64 { return a + b },
}).Parse(plotSource))

// Lengths in a plot.
const (
	plotWidth = 780.0
	labels    = 110.0
	values    = 190.0
	rowHeight = 26.0
	heading   = 34.0
)

// bar is the median of a contender, with a line from the least to the most.
type bar struct {
	Name, Value        string
	Y, Width, From, To float64
	Ours               bool
}

// draw writes the plots of all scenarios that were measured.
func (r *results) draw(folder string) error {
	for _, s := range scenarios {
		for _, p := range plottedOf(s) {
			bars := r.bars(p)
			if len(bars) == 0 {
				continue
			}
			file, err := os.Create(filepath.Join(folder, p.file()))
			if err != nil {
				return err
			}
			err = plotTemplate.Execute(file, map[string]any{
				"Title": p.title(), "Bars": bars, "Width": plotWidth, "Left": labels,
				"Height": heading + rowHeight*float64(len(bars)) + rowHeight/2,
			})
			if err != nil {
				return err
			}
			if err := file.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// bars are scaled so that the longest line fits.
func (r *results) bars(p plotted) (bars []bar) {
	longest := 0.0
	names := r.contenders(p.scenario)
	for _, name := range names {
		if s, measured := r.of(p.scenario.name, name, p.measure); measured {
			longest = max(longest, s.most)
		}
	}
	if longest == 0 {
		return nil
	}
	scale := (plotWidth - labels - values) / longest
	for i, name := range names {
		s, measured := r.of(p.scenario.name, name, p.measure)
		if !measured {
			continue
		}
		bars = append(bars, bar{
			Name: name, Value: r.cell(p.scenario.name, name, p.measure), Y: heading + rowHeight*float64(i),
			Width: s.median * scale, From: labels + s.least*scale, To: labels + s.most*scale,
			Ours: name == ours || name == oursLifted,
		})
	}
	return bars
}
