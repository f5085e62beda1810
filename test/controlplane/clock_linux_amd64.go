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

package controlplane

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	// clockFunction is the variable of the Go runtime that points to the kernel's clock_gettime.
	clockFunction = "runtime.vdsoClockgettimeSym"
	// spareCode is a function of the Go runtime that only debuggers call. The shifted clock takes its place.
	spareCode = "runtime.debugCallV2"
)

// shiftedClock is clock_gettime, which adds the seconds that follow it to the time of day, and to no other clock.
var shiftedClock = []byte{
	0x57,                         // push rdi: which clock
	0x56,                         // push rsi: where the time goes
	0xb8, 0xe4, 0x00, 0x00, 0x00, // mov eax, SYS_clock_gettime
	0x0f, 0x05, // syscall
	0x5e,       // pop rsi
	0x5f,       // pop rdi
	0x85, 0xff, // test edi, edi: zero is the time of day
	0x75, 0x0a, // jnz past the addition
	0x48, 0x8b, 0x0d, 0x04, 0x00, 0x00, 0x00, // mov rcx, the seconds
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3, // ret
}

// ShiftClock sets the clock of the process, which must be a Go program with its symbols, to the machine's plus shift,
// in whole seconds. It is as if somebody set the clock of the host: no time passes, and timers go on. Other processes,
// and the next one of the same program, are not affected.
func (p *Process) ShiftClock(shift time.Duration) (err error) {
	if !p.Running() {
		return fmt.Errorf("%s: %w", p.name, ErrNotRunning)
	}
	defer func() {
		if err == nil {
			return
		}
		select {
		case <-p.Done():
			err = ErrNotRunning // It has ended meanwhile.
		case <-time.After(time.Second):
		}
		err = fmt.Errorf("shifting the clock of %s: %w", p.name, err)
	}()
	pointer, code, err := clockSymbols(p.cmd.Path)
	if err != nil {
		return err
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", p.Pid()), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	shifted := binary.LittleEndian.AppendUint64(append([]byte{}, shiftedClock...), uint64(shift/time.Second))
	if err := p.Pause(); err != nil {
		return err
	}
	_, err = memory.WriteAt(shifted, code)
	if err == nil {
		_, err = memory.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(code)), pointer)
	}
	return errors.Join(err, p.Resume())
}

// clockSymbols finds where a program keeps the pointer to its clock, and where there is room for another clock.
func clockSymbols(path string) (pointer, code int64, err error) {
	file, err := elf.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer file.Close()
	symbols, err := file.Symbols()
	if err != nil {
		return 0, 0, err
	}
	for _, symbol := range symbols {
		switch {
		case symbol.Name == clockFunction:
			pointer = int64(symbol.Value)
		case symbol.Name == spareCode || symbol.Name == spareCode+".abi0":
			code = int64(symbol.Value)
		}
	}
	if file.Type != elf.ET_EXEC || pointer == 0 || code == 0 {
		return 0, 0, errors.New("it is no Go program at a fixed address with its symbols")
	}
	return pointer, code, nil
}
