package proxmox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	goproxmox "github.com/luthermonson/go-proxmox"
)

const mostAnswer = 1 << 20

// ISOVolume is the volume ID of an uploaded image.
func ISOVolume(storage, name string) string { return storage + ":iso/" + name }

// UploadISO puts an image on a host's storage and waits until it is there. An
// image of that name is overwritten, so it can be repeated.
func (c *Client) UploadISO(ctx context.Context, node, storage, name string, image []byte, beat Beat) (volume string, err error) {
	op := fmt.Sprintf("upload %s to storage %s of %s", name, storage, node)
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*\.iso$`).MatchString(name) {
		return "", &Error{Op: op, Kind: ErrInvalid, Message: "the name must be letters, digits, ., _ and -, ending in .iso"}
	}
	upid, err := c.upload(ctx, op, node, storage, name, image)
	if err != nil {
		return "", err
	}
	if _, err := c.WaitTask(ctx, upid, beat); err != nil {
		return "", err
	}
	volumes, err := c.isoVolumes(ctx, node, storage)
	if err != nil {
		return "", err
	}
	volume = ISOVolume(storage, name)
	if !slices.Contains(volumes, volume) {
		return "", &Error{Op: op, Kind: ErrNoSuchVolume, Message: "the upload succeeded, but the storage does not list " + volume}
	}
	return volume, nil
}

// upload sends the image as the multipart form Proxmox wants. go-proxmox's own
// upload takes no context.
func (c *Client) upload(ctx context.Context, op, node, storage, name string, image []byte) (UPID, error) {
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	err := w.WriteField("content", "iso")
	if err == nil {
		var part io.Writer
		if part, err = w.CreateFormFile("filename", name); err == nil {
			_, err = part.Write(image)
		}
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return "", fmt.Errorf("%s: write the form: %w", op, err)
	}
	var sent atomic.Bool
	request, err := http.NewRequestWithContext(context.WithValue(ctx, sentKey{}, &sent), http.MethodPost,
		c.base+"/nodes/"+node+"/storage/"+storage+"/upload", bytes.NewReader(form.Bytes()))
	if err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	request.Header.Set("Content-Type", w.FormDataContentType())
	request.Header.Set("Authorization", c.auth)
	started := time.Now()
	response, err := c.http.Do(request)
	if err != nil {
		return "", classify(op, err, sent.Load())
	}
	defer func() { _ = response.Body.Close() }()
	var answer struct {
		Data    UPID              `json:"data"`
		Message string            `json:"message"`
		Errors  map[string]string `json:"errors"`
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, mostAnswer))
	if err == nil && len(body) > 0 {
		err = json.Unmarshal(body, &answer)
	}
	c.log.DebugContext(ctx, "proxmox upload", "node", node, "storage", storage, "name", name, "took", time.Since(started), "status", response.Status)
	if response.StatusCode != http.StatusOK {
		if answer.Message == "" && len(response.Status) > 4 {
			answer.Message = response.Status[4:]
		}
		return "", classifyAnswer(op, &goproxmox.APIError{StatusCode: response.StatusCode, Status: response.Status, Message: answer.Message, Errors: answer.Errors})
	}
	return answer.Data, classify(op, err, true)
}

func (c *Client) isoVolumes(ctx context.Context, node, storage string) ([]string, error) {
	var rows []struct {
		Volume string `json:"volid"`
	}
	op := fmt.Sprintf("list images on storage %s of %s", storage, node)
	if err := c.call(ctx, op, http.MethodGet, "/nodes/"+node+"/storage/"+storage+"/content", map[string]any{"content": "iso"}, &rows); err != nil {
		return nil, err
	}
	list := make([]string, 0, len(rows))
	for _, row := range rows {
		list = append(list, row.Volume)
	}
	return list, nil
}

// DeleteISO removes an uploaded image and waits until it is gone. One that is
// not there is fine.
func (c *Client) DeleteISO(ctx context.Context, node, storage, name string, beat Beat) error {
	op := fmt.Sprintf("delete %s from storage %s of %s", name, storage, node)
	volume := ISOVolume(storage, name)
	volumes, err := c.isoVolumes(ctx, node, storage)
	if err != nil || !slices.Contains(volumes, volume) {
		return err
	}
	var upid *UPID
	path := "/nodes/" + node + "/storage/" + storage + "/content/" + url.PathEscape(volume)
	if err := c.call(ctx, op, http.MethodDelete, path, nil, &upid); err != nil {
		if errors.Is(err, ErrNoSuchVolume) {
			return nil
		}
		return err
	}
	var failed error
	if upid != nil {
		_, failed = c.WaitTask(ctx, *upid, beat)
	}
	if failed == nil {
		return nil
	}
	// Someone else may have removed it meanwhile.
	if volumes, err = c.isoVolumes(ctx, node, storage); err == nil && !slices.Contains(volumes, volume) {
		return nil
	}
	return failed
}

// AttachISO puts an image into a CD-ROM drive of the VM.
func (c *Client) AttachISO(ctx context.Context, ref Ref, slot, volume string) error {
	return c.WriteConfig(ctx, ref, ConfigWish{ISO: map[string]string{slot: volume}})
}

// DetachISO takes out what is in a CD-ROM drive; the drive stays, empty. A
// drive that does not exist is fine.
func (c *Client) DetachISO(ctx context.Context, ref Ref, slot string) error {
	seen, err := c.own(ctx, "detach image of "+ref.String(), ref)
	if err != nil {
		return err
	}
	if _, there := seen.Config.values[slot]; !there {
		return nil
	}
	return c.WriteConfig(ctx, ref, ConfigWish{ISO: map[string]string{slot: "none"}})
}
