package scenario

// hostScenarios need hosts and networks only.
func hostScenarios() []Scenario {
	return []Scenario{
		staleARP(), ipconfigWrongNIC(), guestAgentOff(), addressLostAfterReset(), vmidRange(), unknownNodeName(), templateOnOtherHost(),
		memoryNotReservable(), poolExhausted(), missingPrivilege(), bridgeWithoutVLAN(),
	}
}

// tenantScenarios need tenants; most share one that Aether made and one that was
// made by hand.
func tenantScenarios() []Scenario {
	return []Scenario{
		nodeRestriction(), advertiseAddress(), versionSkew(), caMismatch(), bootstrapToken(), storageNIC(),
	}
}

// durabilityScenarios are about what is made, what survives, and what is left.
func durabilityScenarios() []Scenario {
	return []Scenario{
		createDelete(), rawStart(), uiMetadata(), cancelJoin(), killWorker(), lostAnswers(),
	}
}
