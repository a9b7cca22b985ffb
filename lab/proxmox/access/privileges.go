package access

// Privileges lists all privileges of PVE 9 that the simulator checks or shows.
func Privileges() []string {
	return []string{
		"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit",
		"Group.Allocate", "Mapping.Audit", "Mapping.Modify", "Mapping.Use", "Permissions.Modify",
		"Pool.Allocate", "Pool.Audit", "Realm.Allocate", "Realm.AllocateUser",
		"SDN.Allocate", "SDN.Audit", "SDN.Use",
		"Sys.AccessNetwork", "Sys.Audit", "Sys.Console", "Sys.Incoming", "Sys.Modify", "Sys.PowerMgmt", "Sys.Syslog",
		"User.Modify",
		"VM.Allocate", "VM.Audit", "VM.Backup", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Cloudinit",
		"VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options",
		"VM.Console", "VM.GuestAgent.Audit", "VM.GuestAgent.FileRead", "VM.GuestAgent.FileSystemMgmt",
		"VM.GuestAgent.FileWrite", "VM.GuestAgent.Unrestricted", "VM.Migrate", "VM.PowerMgmt", "VM.Replicate",
		"VM.Snapshot", "VM.Snapshot.Rollback",
	}
}

// noAccess is the role that cancels all others on a path.
const noAccess = "NoAccess"

// builtinRoles are the roles that every installation has.
func builtinRoles() map[string][]string {
	roles := map[string][]string{
		"Administrator":    Privileges(),
		noAccess:           {},
		"PVEAuditor":       {"Datastore.Audit", "Mapping.Audit", "Pool.Audit", "SDN.Audit", "Sys.Audit", "VM.Audit", "VM.GuestAgent.Audit"},
		"PVEDatastoreUser": {"Datastore.AllocateSpace", "Datastore.Audit"},
		"PVEPoolAdmin":     {"Pool.Allocate", "Pool.Audit"},
		"PVEPoolUser":      {"Pool.Audit"},
		"PVESDNAdmin":      {"SDN.Allocate", "SDN.Audit", "SDN.Use"},
		"PVESDNUser":       {"SDN.Audit", "SDN.Use"},
		"PVESysAdmin":      {"Sys.Audit", "Sys.Console", "Sys.Syslog"},
		"PVETemplateUser":  {"VM.Audit", "VM.Clone"},
		"PVEUserAdmin":     {"Group.Allocate", "Realm.AllocateUser", "User.Modify"},
		"PVEVMUser":        {"VM.Audit", "VM.Backup", "VM.Config.CDROM", "VM.Config.Cloudinit", "VM.Console", "VM.PowerMgmt"},
	}
	root := map[string]bool{
		"Permissions.Modify": true, "Realm.Allocate": true, "Sys.AccessNetwork": true,
		"Sys.Incoming": true, "Sys.Modify": true, "Sys.PowerMgmt": true,
	}
	for _, p := range Privileges() {
		switch {
		case len(p) > 3 && p[:3] == "VM.":
			roles["PVEVMAdmin"] = append(roles["PVEVMAdmin"], p)
		case len(p) > 10 && p[:10] == "Datastore.":
			roles["PVEDatastoreAdmin"] = append(roles["PVEDatastoreAdmin"], p)
		}
		if !root[p] {
			roles["PVEAdmin"] = append(roles["PVEAdmin"], p)
		}
	}
	return roles
}
