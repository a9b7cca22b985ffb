package v1alpha1

// Condition types of an AetherCluster. ReadyCondition sums them up.
const (
	// ReadyCondition is True when the tenant or machine can be used.
	ReadyCondition = "Ready"
	// PlanAcceptedCondition is False, with every failed check in its message,
	// when the tenant cannot be made as asked for.
	PlanAcceptedCondition = "PlanAccepted"
	// ProxyReadyCondition is True when the proxy VM has applied its
	// configuration and reaches the API server.
	ProxyReadyCondition = "ProxyReady"
	// ControlPlaneReadyCondition is True when the API server answers, its
	// controllers work and a node could join.
	ControlPlaneReadyCondition = "ControlPlaneReady"
	// NetworkReadyCondition is True when Cilium is installed.
	NetworkReadyCondition = "NetworkReady"
	// WorkersReadyCondition is True when the first workers are usable.
	WorkersReadyCondition = "WorkersReady"
)

// Condition types of an AetherMachine and AetherVM.
const (
	// VMReadyCondition is True when the VM runs and has its configuration.
	VMReadyCondition = "VMReady"
	// NodeUsableCondition is True when the Node is Ready, untainted, and logs
	// and exec work on it.
	NodeUsableCondition = "NodeUsable"
)

// Reasons of conditions.
const (
	// ReasonReady : all that was asked for is there.
	ReasonReady = "Ready"
	// ReasonUnproven : the control plane is ready, and no worker has proven it.
	ReasonUnproven = "ReadyNotYetProvenByANode"
	// ReasonInProgress : a workflow is at it; the message names the step.
	ReasonInProgress = "InProgress"
	// ReasonRefused : a check failed; the message says what to change.
	ReasonRefused = "Refused"
	// ReasonFailed : a step failed for good; the message says which and why.
	ReasonFailed = "Failed"
	// ReasonCancelled : a person cancelled the workflow.
	ReasonCancelled = "Cancelled"
	// ReasonDeleting : the object is being deleted.
	ReasonDeleting = "Deleting"
	// ReasonWaiting : something else must happen first; the message names it.
	ReasonWaiting = "Waiting"
)
