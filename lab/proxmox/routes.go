package proxmox

// routes is the table of what the simulator answers; anything else is 501.
func routes() map[string]handler {
	all := map[string]handler{}
	for _, part := range []map[string]handler{clusterRoutes(), accessRoutes(), nodeRoutes(), machineRoutes(), storageRoutes()} {
		for key, h := range part {
			all[key] = h
		}
	}
	return all
}

func clusterRoutes() map[string]handler {
	return map[string]handler{
		"GET /version":                       version,
		"GET /cluster/status":                clusterStatus,
		"GET /cluster/nextid":                nextID,
		"GET /cluster/options":               clusterOptions,
		"GET /cluster/resources":             clusterResources,
		"GET /cluster/tasks":                 clusterTasks,
		"GET /cluster/sdn/zones":             sdnZones,
		"GET /cluster/sdn/zones/{zone}":      sdnZone,
		"GET /cluster/sdn/vnets":             sdnVNets,
		"GET /cluster/sdn/vnets/{vnet}":      sdnVNet,
		"GET /cluster/ha/resources":          listHA,
		"POST /cluster/ha/resources":         createHA,
		"GET /cluster/ha/resources/{sid}":    readHA,
		"PUT /cluster/ha/resources/{sid}":    updateHA,
		"DELETE /cluster/ha/resources/{sid}": deleteHA,
		"GET /cluster/ha/rules":              haRules,
		"GET /cluster/ha/status/current":     haStatus,
		"GET /pools":                         listPools,
		"POST /pools":                        createPool,
		"PUT /pools":                         updatePool,
		"DELETE /pools":                      deletePool,
		"GET /pools/{poolid}":                readPool,
		"PUT /pools/{poolid}":                updatePool,
		"DELETE /pools/{poolid}":             deletePool,
	}
}

func accessRoutes() map[string]handler {
	return map[string]handler{
		"GET /access/acl":                               listACL,
		"PUT /access/acl":                               updateACL,
		"GET /access/permissions":                       permissions,
		"GET /access/roles":                             listRoles,
		"GET /access/ticket":                            loginPage,
		"POST /access/ticket":                           createTicket,
		"GET /access/users":                             listUsers,
		"GET /access/users/{userid}/token":              listTokens,
		"GET /access/users/{userid}/token/{tokenid}":    readToken,
		"POST /access/users/{userid}/token/{tokenid}":   createToken,
		"DELETE /access/users/{userid}/token/{tokenid}": deleteToken,
	}
}

func nodeRoutes() map[string]handler {
	return map[string]handler{
		"GET /nodes":                            listNodes,
		"GET /nodes/{node}/status":              nodeStatus,
		"GET /nodes/{node}/version":             version,
		"GET /nodes/{node}/time":                nodeTime,
		"GET /nodes/{node}/dns":                 nodeDNS,
		"GET /nodes/{node}/lxc":                 listContainers,
		"GET /nodes/{node}/network":             listNetwork,
		"GET /nodes/{node}/network/{iface}":     readNetwork,
		"GET /nodes/{node}/tasks":               nodeTasks,
		"DELETE /nodes/{node}/tasks/{upid}":     stopTask,
		"GET /nodes/{node}/tasks/{upid}/log":    taskLog,
		"GET /nodes/{node}/tasks/{upid}/status": taskStatus,
	}
}

func machineRoutes() map[string]handler {
	const one = "/nodes/{node}/qemu/{vmid}"
	return map[string]handler{
		"GET /nodes/{node}/qemu":  listVMs,
		"POST /nodes/{node}/qemu": createVM,
		"GET " + one:              index("agent", "clone", "cloudinit", "config", "pending", "resize", "snapshot", "status", "template"),
		"DELETE " + one:           destroyVM,

		"GET " + one + "/config":         readConfig,
		"POST " + one + "/config":        updateVMAsync,
		"PUT " + one + "/config":         updateVM,
		"GET " + one + "/pending":        pendingConfig,
		"PUT " + one + "/resize":         resizeVM,
		"PUT " + one + "/unlink":         unlinkVM,
		"POST " + one + "/clone":         cloneVM,
		"POST " + one + "/template":      templateVM,
		"GET " + one + "/cloudinit":      cloudInitPending,
		"PUT " + one + "/cloudinit":      regenerateCloudInit,
		"GET " + one + "/cloudinit/dump": dumpCloudInit,

		"GET " + one + "/status":           index("current", "reboot", "reset", "shutdown", "start", "stop"),
		"GET " + one + "/status/current":   currentStatus,
		"POST " + one + "/status/start":    startVM,
		"POST " + one + "/status/stop":     stopVM,
		"POST " + one + "/status/shutdown": shutdownVM,
		"POST " + one + "/status/reboot":   rebootVM,
		"POST " + one + "/status/reset":    resetVM,

		"GET " + one + "/snapshot":               listSnapshots,
		"POST " + one + "/snapshot":              snapshotVM,
		"DELETE " + one + "/snapshot/{snapname}": deleteSnapshot,

		"POST " + one + "/agent/ping":                  agentCall(agentPing),
		"GET " + one + "/agent/info":                   agentCall(agentInfo),
		"GET " + one + "/agent/get-host-name":          agentCall(agentHostName),
		"GET " + one + "/agent/get-osinfo":             agentCall(agentOSInfo),
		"GET " + one + "/agent/network-get-interfaces": agentCall(agentInterfaces),
		"POST " + one + "/agent/exec":                  agentExec,
		"GET " + one + "/agent/exec-status":            agentExecStatus,
	}
}

func storageRoutes() map[string]handler {
	const one = "/nodes/{node}/storage/{storage}"
	return map[string]handler{
		"GET /storage":                        listStorageConfig,
		"GET /storage/{storage}":              readStorageConfig,
		"GET /nodes/{node}/storage":           nodeStorages,
		"GET " + one + "/status":              storageStatus,
		"GET " + one + "/content":             storageContent,
		"POST " + one + "/content":            createVolume,
		"GET " + one + "/content/{volume}":    readVolume,
		"DELETE " + one + "/content/{volume}": deleteVolume,
		"POST " + one + "/upload":             upload,
	}
}
