package scenario

// hostScenarios need hosts and networks only.
func hostScenarios() []Scenario {
	return []Scenario{
		staleARP(), ipconfigWrongNIC(), guestAgentOff(), addressLostAfterReset(), vmidRange(), unknownNodeName(), templateOnOtherHost(),
		memoryNotReservable(), poolExhausted(), missingPrivilege(), bridgeWithoutVLAN(),
	}
}

func tenantScenarios() []Scenario { return nil }

func durabilityScenarios() []Scenario { return nil }
