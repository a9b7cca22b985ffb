// Package access is PVE's access control: users, API tokens with their own
// privileges, tickets, roles, the ACL tree and the permission expressions of
// the API schema.
//
// It answers with PVE's texts. It keeps every secret that it handed out, so
// that a test can search for them where they must not be.
package access
