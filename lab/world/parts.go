package world

// Names of the parts, in the order of a person's reading.
const (
	partFabric     = "fabric"
	partRegistry   = "registry"
	partTemporal   = "temporal"
	partManagement = "management"
	partStore      = "datastore"
	partKinds      = "kinds"
	partCAPI       = "capi"
	partServices   = "services"
	partNode       = "node"
	partKamaji     = "kamaji"
	partProxmox    = "proxmox"
	partSite       = "site"
	partProduct    = "product"
	partControl    = "control"
)

// parts lists everything that is started, and what each needs to be ready.
func (w *World) parts() []part {
	return []part{
		{partControl, nil, w.startControl},
		{partFabric, []string{partControl}, w.startFabric},
		{partRegistry, []string{partFabric}, w.startRegistry},
		{partTemporal, []string{partFabric}, w.startTemporal},
		{partManagement, []string{partFabric}, w.startManagement},
		{partStore, []string{partFabric}, w.startStore},
		{partKinds, []string{partManagement}, w.installKinds},
		{partServices, []string{partManagement}, w.startServices},
		{partNode, []string{partManagement, partRegistry}, w.startNode},
		{partCAPI, []string{partKinds}, w.startCAPI},
		{partKamaji, []string{partKinds, partStore}, w.startKamaji},
		{partProxmox, []string{partRegistry}, w.startProxmox},
		{partSite, []string{partProxmox, partManagement}, w.writeSite},
		{
			partProduct,
			[]string{partControl, partTemporal, partSite, partNode, partServices, partKamaji, partCAPI},
			w.startProduct,
		},
	}
}
