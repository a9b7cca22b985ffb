package activities

import (
	"encoding/json"
	"fmt"
)

// fields turns a typed value into the map that server-side apply sends: only
// what is set, so that only that is owned.
func fields(value any) (map[string]any, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", value, err)
	}
	var result map[string]any
	if err := json.Unmarshal(data, &result); err != nil {
		return nil, fmt.Errorf("decode %T: %w", value, err)
	}
	return result, nil
}
