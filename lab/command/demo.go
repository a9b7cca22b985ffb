package command

import (
	"github.com/spf13/cobra"
)

func (l *lab) demoCommand() *cobra.Command {
	return &cobra.Command{Use: "demo", Hidden: true}
}
