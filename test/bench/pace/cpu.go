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
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of times in /proc on every Linux that matters.
const clockTick = 10 * time.Millisecond

// cpu reads how much CPU time was used, and by whom. Where there is no /proc it reads nothing.
type cpu struct {
	servers    []int
	foreground int
}

type cpuUse struct{ servers, self, elsewhere time.Duration }

func (c cpu) used() cpuUse {
	use := cpuUse{self: usedBy(os.Getpid())}
	for _, pid := range c.servers {
		use.servers += usedBy(pid)
	}
	use.elsewhere = usedByAll() - use.servers - use.self - usedBy(c.foreground)
	return use
}

// usedByAll is what everybody on the machine used, and what was stolen from it.
func usedByAll() time.Duration {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(content), "\n")
	var used time.Duration
	for i, field := range strings.Fields(line)[1:] {
		const idle, ioWait, guests = 3, 4, 8
		if ticks, _ := strconv.Atoi(field); i != idle && i != ioWait && i < guests {
			used += time.Duration(ticks) * clockTick
		}
	}
	return used
}

func usedBy(pid int) time.Duration {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in brackets, may hold anything.
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	var used time.Duration
	for _, field := range fields[11:13] {
		ticks, _ := strconv.Atoi(field)
		used += time.Duration(ticks) * clockTick
	}
	return used
}
