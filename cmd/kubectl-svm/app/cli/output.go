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
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"
)

// Formats that -o takes besides the table.
const (
	Wide = "wide"
	JSON = "json"
	YAML = "yaml"
	Name = "name"
)

// Output is the flag -o.
type Output struct {
	Format  string
	formats []string
}

// AddTo adds the flag to a command. A command that does not take every format names those that it takes.
func (o *Output) AddTo(cmd *cobra.Command, formats ...string) {
	if len(formats) == 0 {
		formats = []string{Wide, JSON, YAML, Name}
	}
	o.formats = formats
	cmd.Flags().StringVarP(&o.Format, "output", "o", o.Format,
		"Output format. One of: "+strings.Join(formats, ", "))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

// Validate returns an error if the format is not one of those that the command takes.
func (o *Output) Validate() error {
	if o.Format != "" && !slices.Contains(o.formats, o.Format) {
		return fmt.Errorf("-o %s is not known: use %s, or leave it out", o.Format, strings.Join(o.formats, ", "))
	}
	return nil
}

// Structured reports whether the output is for programs.
func (o *Output) Structured() bool { return o.Format == JSON || o.Format == YAML }

// PrintData prints objects as JSON or as YAML. The types of all values can be encoded.
func (o *Output) PrintData(env *Env, value any) { o.printData(env, value, "") }

// PrintAnswer prints an answer of the plugin as PrintData does. The commands that the plugin has written into it are
// for the cluster that was asked.
func (o *Output) PrintAnswer(env *Env, value any) { o.printData(env, value, env.ConnectionFlags) }

func (o *Output) printData(env *Env, value any, connectionFlags string) {
	data, err := json.MarshalIndent(value, "", "  ")
	inString, _ := json.Marshal(connectionFlags) // with quotes
	data = []byte(addFlags(string(data), string(inString[1:len(inString)-1])))
	if err == nil && o.Format == YAML {
		data, err = yaml.JSONToYAML(data)
	}
	utilruntime.Must(err)
	fmt.Fprintf(env.Out, "%s\n", bytes.TrimRight(data, "\n"))
}

// Column is one column of a table.
type Column struct {
	Name string
	// Wide means that only -o wide shows the column.
	Wide bool
}

// Row is one row of a table. Its colour counts on a terminal only.
type Row struct {
	Cells  []any
	Colour Colour
}

// PrintTable prints a table as kubectl does.
func (o *Output) PrintTable(env *Env, columns []Column, rows []Row) {
	table := &metav1.Table{}
	for _, column := range columns {
		definition := metav1.TableColumnDefinition{Name: column.Name, Type: "string"}
		if column.Wide {
			definition.Priority = 1
		}
		table.ColumnDefinitions = append(table.ColumnDefinitions, definition)
	}
	for _, row := range rows {
		cells := slices.Clone(row.Cells)
		for i, cell := range cells {
			if text, is := cell.(string); is {
				text = addFlags(text, env.ConnectionFlags)
				cells[i] = strings.ReplaceAll(text, "\n", " ") // The printer cuts what follows.
			}
		}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: cells})
	}
	var text bytes.Buffer
	printer := printers.NewTablePrinter(printers.PrintOptions{Wide: o.Format == Wide})
	utilruntime.Must(printer.PrintObj(table, &text)) // A buffer takes everything.
	// The printer escapes colours inside cells. It prints one line for the header and one for each row.
	for i, line := range strings.Split(strings.TrimRight(text.String(), "\n"), "\n") {
		line = strings.TrimRight(line, " ")
		if i > 0 && i <= len(rows) {
			line = env.Paint(rows[i-1].Colour, line)
		}
		fmt.Fprintln(env.Out, line)
	}
}

// Colour is an SGR parameter of terminals, or empty.
type Colour string

// Colours that the commands use: what needs a person, what takes time, and what is well.
const (
	Plain  Colour = ""
	Red    Colour = "31"
	Yellow Colour = "33"
	Green  Colour = "32"
)

// Paint gives text a colour if Out may have colours. It escapes what the text has for terminals, because it may quote
// others, for example a webhook.
func (e *Env) Paint(colour Colour, text string) string {
	text = e.legible(text)
	if !e.Colour || colour == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(colour) + "m" + text + "\x1b[0m"
}
