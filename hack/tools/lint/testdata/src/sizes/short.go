// Package sizes has files of several sizes.
package sizes

func short() { // one line more would be too many
	_ = 1
	_ = 2
}

func long() { // want "function long has 5 lines"
	_ = 1
	_ = 2
	_ = 3
}

var wide = "this line is longer than the eighty characters that the test allows" // want "a line has 1.. characters"

// +marker: a generator reads this line, which is longer than the eighty characters that fit
var marked = 1
