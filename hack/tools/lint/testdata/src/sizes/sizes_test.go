package sizes

func longInTest() {
	_ = 1
	_ = 2
	_ = 3
}

var wideInTest = "this line is longer than the eighty characters that it may have" // want "a line has 1.. characters"
