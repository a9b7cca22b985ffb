package container

import (
	"debug/elf"
	"errors"
	"fmt"
	"slices"
	"syscall"
)

// ErrNotStatic says that a program needs shared libraries, which no container
// of the lab has.
var ErrNotStatic = errors.New("the program is linked dynamically; build it with CGO_ENABLED=0")

// explainExec turns the kernel's "no such file" about a program that is there
// into what is missing: the loader that the program names.
func explainExec(program string, err error) error {
	if !errors.Is(err, syscall.ENOENT) {
		return err
	}
	file, elfErr := elf.Open(program)
	if elfErr != nil { // not there, or no ELF file: the kernel's word stands
		return err
	}
	defer func() { _ = file.Close() }()
	if slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return fmt.Errorf("%w (%w)", ErrNotStatic, err)
	}
	return err
}
