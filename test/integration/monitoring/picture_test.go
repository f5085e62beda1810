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

package monitoring

import (
	"cmp"
	_ "embed"
	"flag"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"
)

// picture is for hack/update-screens.sh. Grafana is no Go module that this project can build and run, so the picture is
// drawn here: each panel at its place, with the answers to its queries.
var picture = flag.String("picture", "", "file to which the dashboard is drawn as an SVG")

//go:embed testdata/dashboard.svg.tmpl
var pictureSource string

var pictureTemplate = template.Must(template.New("dashboard").Parse(pictureSource))

// Lengths in the picture. Grafana divides the width into 24 columns.
const (
	pictureColumn = 50
	pictureRow    = 24
	panelGap      = 6
	panelHeading  = 24
	scaleWidth    = 46
	scaleHeight   = 18
	legendWidth   = 7 // of a letter
	legendHeight  = 15
	legendRows    = 3
)

// colors are those of the lines of a panel.
var colors = []string{"#326ce5", "#e5732e", "#2e9e5b", "#b03ae0", "#c8a200", "#d6336c", "#0f9d9d", "#7a5c3e"}

// drawnPanel is a panel in the template.
type drawnPanel struct {
	Type, Title                  string
	X, Y, Width, Height          int
	Left, Right, Top, Bottom     int
	Most, Begin, End, Text, None string
	More                         string // how many names are left out
	Lines                        []drawnLine
}

// drawnLine is a series: its points, and the place of its name below them. It has no name if there is no place.
type drawnLine struct {
	Name, Color, Path string
	X, Y, Row         int
}

// answer is a series with its name in the legend.
type answer struct {
	name   string
	points []point
}

// most is the highest value.
func (a answer) most() float64 {
	return slices.MaxFunc(a.points, func(p, q point) int { return cmp.Compare(p.value, q.value) }).value
}

type point struct {
	at    time.Time
	value float64
}

// drawDashboard draws what the panels have shown since the start of Prometheus, if there is a file for it.
func drawDashboard(t *testing.T, p *prometheus) {
	t.Helper()
	if *picture == "" {
		return
	}
	var panels []drawnPanel
	height, end := 0, time.Now()
	for _, panel := range readDashboard(t).Panels {
		drawn := panel.draw(panel.answers(t, p), p.started, end)
		height = max(height, drawn.Y+drawn.Height)
		panels = append(panels, drawn)
	}
	var b strings.Builder
	err := pictureTemplate.Execute(&b, map[string]any{
		"Width": 24*pictureColumn + panelGap, "Height": height + panelGap, "Panels": panels,
	})
	if err == nil {
		err = os.WriteFile(*picture, []byte(b.String()), 0o644) //nolint:gosec // a picture in the docs
	}
	if err != nil {
		t.Fatal(err)
	}
}

// variable matches a label in the format of a legend.
var variable = regexp.MustCompile(`\{\{(\w+)\}\}`)

func (p panel) answers(t *testing.T, from *prometheus) (answers []answer) {
	t.Helper()
	for _, target := range p.Targets {
		shown, err := from.history(t.Context(), variables.Replace(target.Expr))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range shown {
			a := answer{name: variable.ReplaceAllStringFunc(target.Legend, func(label string) string {
				return s.Metric[strings.Trim(label, "{}")]
			})}
			for _, value := range s.Values {
				text, _ := value[1].(string)
				number, err := strconv.ParseFloat(text, 64)
				if err == nil && !math.IsNaN(number) && !math.IsInf(number, 0) {
					a.points = append(a.points, point{moment(value), number})
				}
			}
			if len(a.points) > 0 {
				answers = append(answers, a)
			}
		}
	}
	return answers
}

func (p panel) draw(answers []answer, begin, end time.Time) drawnPanel {
	d := drawnPanel{
		Type: p.Type, Title: p.Title,
		X: p.Grid.X*pictureColumn + panelGap, Y: p.Grid.Y*pictureRow + panelGap,
		Width: p.Grid.Width*pictureColumn - panelGap, Height: p.Grid.Height*pictureRow - panelGap,
	}
	switch p.Type {
	case "stat":
		d.Text = p.stat(answers)
	case "timeseries":
		d.plot(answers, begin, end, p.Field.Defaults.Unit)
	}
	return d
}

// stat is the last value, or its name.
func (p panel) stat(answers []answer) string {
	var last point
	name := ""
	for _, a := range answers {
		if newest := a.points[len(a.points)-1]; newest.at.After(last.at) {
			last, name = newest, a.name
		}
	}
	if p.Options.TextMode == "name" {
		return name
	}
	return inUnit(last.value, p.Field.Defaults.Unit)
}

func (d *drawnPanel) plot(answers []answer, begin, end time.Time, unit string) {
	slices.SortStableFunc(answers, func(a, b answer) int { return cmp.Compare(b.most(), a.most()) })
	most := 1.0
	if len(answers) > 0 && answers[0].most() > 0 {
		most = answers[0].most()
	}
	d.Left, d.Right = d.X+scaleWidth, d.X+d.Width-panelGap
	rows := d.legend(answers)
	d.Top, d.Bottom = d.Y+panelHeading+panelGap, d.Y+d.Height-panelGap-rows*legendHeight-scaleHeight
	for i, a := range answers {
		d.Lines[i].Path = d.path(a.points, begin, end, most)
	}
	d.Most, d.None = inUnit(most, unit), inUnit(0, unit)
	d.Begin, d.End = "0 s", inUnit(end.Sub(begin).Seconds(), "s")
}

// legend makes a line of each answer, and gives names to as many as there is place for. Grafana lets people scroll.
func (d *drawnPanel) legend(answers []answer) (rows int) {
	x, row, left := d.X+panelGap, 0, 0
	for i, a := range answers {
		line := drawnLine{Color: colors[i%len(colors)]}
		width := (len(a.name) + 4) * legendWidth
		if x+width > d.Right && x > d.X+panelGap {
			x, row = d.X+panelGap, row+1
		}
		if row < legendRows {
			line.Name, line.X, line.Row = a.name, x, row
			x += width
		} else {
			left++
		}
		d.Lines = append(d.Lines, line)
	}
	rows = min(row+1, legendRows)
	for i := range d.Lines {
		d.Lines[i].Y = d.Y + d.Height - panelGap - (rows-1-d.Lines[i].Row)*legendHeight
	}
	if left > 0 {
		d.More = fmt.Sprintf("and %d more", left)
	}
	return rows
}

// path joins the points, and leaves a gap where there was no answer for some seconds. A point between two of the same
// value is left out.
func (d *drawnPanel) path(points []point, begin, end time.Time, most float64) string {
	const gap = 3 * time.Second
	var b strings.Builder
	for i, p := range points {
		begins := i == 0 || p.at.Sub(points[i-1].at) > gap
		ends := i == len(points)-1 || points[i+1].at.Sub(p.at) > gap
		if !begins && !ends && points[i-1].value == p.value && points[i+1].value == p.value {
			continue
		}
		command := "L"
		if begins {
			command = "M"
		}
		x := float64(d.Left) + p.at.Sub(begin).Seconds()/end.Sub(begin).Seconds()*float64(d.Right-d.Left)
		y := float64(d.Bottom) - p.value/most*float64(d.Bottom-d.Top)
		fmt.Fprintf(&b, "%s%.0f %.1f", command, x, y)
	}
	return b.String()
}

// inUnit writes a number as Grafana does in this unit.
func inUnit(value float64, unit string) string {
	switch {
	case unit == "bytes" && value >= 1<<20:
		return fmt.Sprintf("%.0f MiB", value/(1<<20))
	case unit == "bytes":
		return fmt.Sprintf("%.0f KiB", value/(1<<10))
	case unit == "s" && value >= 60:
		return fmt.Sprintf("%.1f min", value/60)
	case unit == "s":
		return fmt.Sprintf("%.3g s", value)
	}
	return fmt.Sprintf("%.3g", value)
}
